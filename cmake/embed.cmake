# embed.cmake: writes the bytes of a file as a C array: cmake -DFROM=FILE -DTO=FILE -DNAME=NAME -P embed.cmake
# SPDX-License-Identifier: MIT
file(READ ${FROM} hex HEX)
get_filename_component(file ${FROM} NAME)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${TO} "/* Made from ${file} when building. */\nstatic const char ${NAME}[] = {\n${bytes}0};\n")
