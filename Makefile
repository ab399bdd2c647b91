# What a person or continuous integration runs. Needs Rust (stable), Python 3.11 with pip, a C compiler and make;
# everything else is fetched at pinned versions (Cargo.lock, requirements-dev.txt, requirements-torch.txt). It knows no
# compiler flags: those are in Cargo.toml, the Python tools' rules in pyproject.toml.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test test-guest slowest bench proof lint lint-rust lint-python test-rust test-python develop

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# One interpreter for every build of the Python module, or cargo would compile PyO3 again for each of them.
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python

help: ## Show this list
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: ## Build, train on the bundled Adult data, say where model and report are
	cargo build --release --locked --package sanderling-cli --bin sanderling
	target/release/sanderling train examples/adult_fm.toml

# What Python needs is a gigabyte to fetch: meanwhile the processors have the lints. Many tests wait, for time or for one another: those of
# Rust and of Python do so together.
test: ## Build and pass every test, Rust and Python
	$(MAKE) --no-print-directory --jobs lint $(VENV)/torch
	$(MAKE) --no-print-directory --jobs test-rust test-python

# Clippy is a compiler, too. Where it is told to be the workspace's (continuous integration does so), the tests are linted as
# they are compiled, and no dependency is compiled a second time for the lints alone.
ifeq ($(RUSTC_WORKSPACE_WRAPPER),clippy-driver)
LINT_RUST := cargo test --workspace --locked --no-run && cargo test --workspace --locked --no-run --benches
else
LINT_RUST := cargo clippy --workspace --all-targets --locked -- -D warnings
endif

lint: lint-python lint-rust ## Formatting, lints, and the rules of the tree

lint-python: $(VENV)/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pytest tests/test_structure.py

lint-rust: $(VENV)/made
	cargo fmt --all --check
	$(LINT_RUST)

# Many tests wait for processes and time limits: with a thread per processor, a third of the processors' time was idle.
test-rust: $(VENV)/ready ## Rust tests
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((3 * $$(getconf _NPROCESSORS_ONLN)))} cargo test --workspace --locked

test-python: develop $(VENV)/torch ## Python types, stubs and tests
	$(BIN)/mypy
	$(BIN)/stubtest sanderling --mypy-config-file pyproject.toml --allowlist python/stubtest.txt
	$(BIN)/pytest --numprocesses 2 --dist worksteal

test-guest: ## Guests in QEMU: power taken away during pushes, RDMA over soft RoCE; fetches Debian's kernel, 70 MB
	tests/guest.sh
	tests/guest_rdma.sh

# A test program shows times only where it is told that unstable options are allowed. Cargo is not told, or it would compile
# everything once more.
slowest: $(VENV)/ready ## Run the tests and list the 20 slowest, Rust and Python
	cargo test --workspace --locked --lib --bins --tests --config 'target."cfg(all())".runner = ["env", "RUSTC_BOOTSTRAP=1"]' \
		-- -Z unstable-options --report-time \
		| sed -nE 's/^test (.*) \.\.\. ok <([0-9.]+)s>$$/\2 s  \1/p' | sort -rn | head -20
	$(BIN)/pytest --numprocesses 2 --dist worksteal --durations 20

bench: $(VENV)/ready $(VENV)/torch ## Measure what docs/results holds the project to; minutes, on an idle machine
	cargo build --release --locked --bins --examples
	target/release/examples/parse_speed
	target/release/examples/parquet_speed
	target/release/sanderling bench store --quiet
	target/release/sanderling bench rpc --quiet
	cargo bench --locked -p sanderling-bench --bench peers
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r bench/requirements.txt
	$(BIN)/python bench/ftrl_vs_vw.py
	$(BIN)/python bench/text_learners.py
	$(BIN)/python bench/parquet_vs_polars.py
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release
	$(BIN)/python bench/checkpoint_vs_torch.py
	$(BIN)/python bench/deep_vs_torch.py
	$(BIN)/python bench/frames.py

proof: ## Model checker, Miri, sanitizers, fuzzing and a soak of the store, as far as this machine has their tools; half an hour
	tests/proof.sh

develop: $(VENV)/ready ## Build the Python module into .venv (dev profile, the artifacts of the Rust tests)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --features workspace

$(VENV)/made:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/ready: requirements-dev.txt | $(VENV)/made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

$(VENV)/torch: $(VENV)/ready requirements-torch.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-warn-conflicts -r requirements-torch.txt
	touch $@
