# Each target does all the set-up it needs. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint fmt rdna3 bench

INDRIK := target/release/indrik

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "%-8s %s\n", $$1, $$2 }'

setup: ## install what is missing: Vulkan loader, Mesa's drivers, validation layer, C++ compiler
	@scripts/setup.sh

demo: setup ## build, examine this machine, prove every kernel on it, measure it
	cargo build --release
	$(INDRIK) devices
	$(INDRIK) doctor --selftest
	$(INDRIK) bench --bandwidth
	$(INDRIK) bench --gemv 6912x1152 --size 512M

test: setup lint ## everything that must pass before a change lands; needs no GPU
	cargo test --workspace

lint: setup ## formatting, clippy, documentation, licences
	cargo fmt --all --check
	cargo clippy --workspace --all-targets
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items
	scripts/deny.sh

fmt: ## format the code
	cargo fmt --all

rdna3: setup ## write docs/rdna3.md: every kernel as Mesa compiles it for RDNA3
	cargo build --release
	scripts/rdna3.sh $(INDRIK) > docs/rdna3.md.new && mv docs/rdna3.md.new docs/rdna3.md

bench: setup ## measure this machine's device
	cargo build --release
	$(INDRIK) bench --bandwidth
	$(INDRIK) bench --gemv 43008x5376
