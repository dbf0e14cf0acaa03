# Makefile: the short way in. `make` builds, `make demo` shows, `make test` checks everything; CMake does the work.
# SPDX-License-Identifier: MIT
BUILD ?= build
PREFIX ?= /usr/local
CMAKE_FLAGS ?=

.PHONY: all help demo test test-frameworks bench bench-peers bench-gradients bench-hf bench-python format install clean setup setup-test check

all: setup
	@mkdir -p $(BUILD)
	@cmake -S . -B $(BUILD) -G Ninja $(CMAKE_FLAGS) > $(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }
	cmake --build $(BUILD)

help:
	@echo "make            set up if needed, build into $(BUILD)/"
	@echo "make demo       a real trained attention layer at work"
	@echo "make test       every test and check but test-frameworks; make check-NAME runs one, scripts/check.sh list names them"
	@echo "make test-frameworks  the Python package inside PyTorch and others, which it installs into .venv-frameworks/"
	@echo "make bench      how fast it is here, beside the machine's limit and others; BENCH=\"--only ... --json ...\" passes options"
	@echo "make bench-peers  the same beside PyTorch, ONNX Runtime, OpenVINO and JAX, which it installs into .venv-bench/"
	@echo "make bench-gradients  a step of training, the run and its gradients, beside PyTorch"
	@echo "make bench-hf   a real model through Hugging Face transformers on libattn, sdpa and eager"
	@echo "make bench-python  what a call from Python costs beyond the C call"
	@echo "make format     formats the C sources"
	@echo "make install    into PREFIX (default $(PREFIX)), below DESTDIR if given"
	@echo "make clean      removes what was built"

setup:
	@scripts/setup.sh build

setup-test:
	@scripts/setup.sh test

demo: all
	$(BUILD)/attn demo --png $(BUILD)/attn-demo.png

test: setup-test
	@scripts/check.sh all

test-frameworks: setup-test
	@scripts/check.sh frameworks

check: test

check-%: setup-test
	@scripts/check.sh $*

bench: all
	@cmake --build $(BUILD) --target attn_bench
	env -u OPENBLAS_CORETYPE $(BUILD)/attn_bench $(BENCH)

bench-peers: all
	@cmake --build $(BUILD) --target attn_bench_shared
	@cmp -s bench/peers-requirements.txt .venv-bench/requirements.txt || { rm -rf .venv-bench && python3 -m venv .venv-bench && \
	    .venv-bench/bin/python -m pip install -q --disable-pip-version-check -r bench/peers-requirements.txt && \
	    cp bench/peers-requirements.txt .venv-bench/requirements.txt; }
	ATTN_BUILD_DIR=$(BUILD) .venv-bench/bin/python bench/peers.py $(BENCH)

bench-gradients: all
	@cmake --build $(BUILD) --target attn_bench_shared
	@test -d .venv-bench || { echo "make bench-peers makes .venv-bench/, which has PyTorch"; exit 1; }
	ATTN_BUILD_DIR=$(BUILD) .venv-bench/bin/python bench/gradients.py $(BENCH)

bench-hf: all
	@scripts/checks/frameworks.sh install
	.venv-frameworks/bin/python bench/minilm.py $(BENCH)

bench-python: all setup-test
	.venv/bin/python bench/python_overhead.py $(BENCH)

format:
	clang-format-19 -i $$(scripts/sources.sh)

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	rm -rf build build-*
