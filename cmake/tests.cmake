# tests.cmake: every tests/test_*.c is a cmocka program, every tests/fuzz_*.c a fuzz target; each is one ctest entry.
# SPDX-License-Identifier: MIT
# All link the static libraries: the tests look inside, and --wrap must reach calls that the library makes.

# Tests run in the source tree, so that ../shared, examples/ and tests/corpus/ are found; the sanitizers stop at the first fault.
set(test_environment
    "ASAN_OPTIONS=allocator_may_return_null=1:detect_stack_use_after_return=1"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=halt_on_error=1"
    "OPENBLAS_NUM_THREADS=1"
    "ATTN_BUILD_DIR=${PROJECT_BINARY_DIR}")

function(attn_add_test name)
    add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${test_environment}" TIMEOUT 600 SKIP_RETURN_CODE 77)
endfunction()

function(attn_add_test_program name)
    add_executable(${name} ${ARGN})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/io ${PROJECT_SOURCE_DIR}/src tests)
    if(ATTN_BUILD_LAYER)
        target_link_libraries(${name} PRIVATE attn_layer_static)
    else()
        target_link_libraries(${name} PRIVATE attn_static)
    endif()
endfunction()

file(GLOB support CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support*.c)

# Without cmocka, static: this one also runs under an emulator where no foreign package is installed.
if(support AND EXISTS ${PROJECT_SOURCE_DIR}/tests/qemu_main.c)
    add_executable(qemu_main tests/qemu_main.c ${support})
    set_target_properties(qemu_main PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    target_link_libraries(qemu_main PRIVATE attn_static)
    if(CMAKE_CROSSCOMPILING)
        target_link_options(qemu_main PRIVATE -static)
    endif()
    attn_add_test(qemu_main qemu_main)
endif()
if(CMAKE_CROSSCOMPILING)
    return()
endif()

file(GLOB test_sources CONFIGURE_DEPENDS tests/test_*.c)
if(test_sources AND ATTN_BUILD_LAYER)
    pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
    pkg_check_modules(LIBPNG REQUIRED IMPORTED_TARGET libpng)
    foreach(source ${test_sources})
        get_filename_component(name ${source} NAME_WE)
        attn_add_test_program(${name} ${source} ${support})
        target_link_libraries(${name} PRIVATE PkgConfig::CMOCKA PkgConfig::JANSSON PkgConfig::LIBZIP PkgConfig::LIBPNG m)
        attn_add_test(${name} ${name})
    endforeach()
    if(TARGET test_plan) # over the shapes of the bench
        target_sources(test_plan PRIVATE bench/row.c)
    endif()
    if(TARGET test_io_failures)
        target_link_options(test_io_failures PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
    endif()
    if(TARGET test_failures)
        target_link_options(test_failures PRIVATE
            -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=pthread_create,--wrap=aligned_alloc,--wrap=posix_memalign)
    endif()
    if(TARGET test_layer_failures)
        target_link_options(test_layer_failures PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
    endif()
endif()

file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz_*.c)
foreach(source ${fuzz_sources})
    get_filename_component(name ${source} NAME_WE)
    string(REPLACE fuzz_ "" corpus ${name})
    if(ATTN_FUZZ)
        attn_add_test_program(${name} ${source})
        target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    else()
        attn_add_test_program(${name} ${source} ${PROJECT_SOURCE_DIR}/tests/replay.c)
        attn_add_test(${name} ${name} ${PROJECT_SOURCE_DIR}/tests/corpus/${corpus})
    endif()
endforeach()

if(TARGET attn_command AND EXISTS ${PROJECT_SOURCE_DIR}/tests/cli/run.sh)
    attn_add_test(cli ${PROJECT_SOURCE_DIR}/tests/cli/run.sh $<TARGET_FILE:attn_command>)
endif()
