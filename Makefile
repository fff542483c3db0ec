# Each target does all the set-up it needs. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo test clients soak lint fmt model rdna3 bench curve versus perplexity

INDRIK := target/release/indrik
MODEL := gemma3:270m

# Data for tests that is not ours to keep in the project: reference values and texts. Tests say what they leave out without it.
ifneq ($(wildcard ../shared/data),)
export INDRIK_TEST_DATA ?= $(abspath ../shared/data)
endif

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "%-8s %s\n", $$1, $$2 }'

setup: ## install what is missing: Vulkan loader, Mesa's drivers, validation layer, C++ compiler
	@scripts/setup.sh

demo: setup ## build, fetch Gemma 3 270M and let it write, on the best device of this machine
	cargo build --release
	$(INDRIK) devices
	$(INDRIK) pull $(MODEL)
	$(INDRIK) generate -m $(MODEL) -p "The three primary colours are" -n 64

test: setup lint model ## everything that must pass before a change lands; needs no GPU
	model=$$(cat target/test-model); [ -z "$$model" ] || export INDRIK_TEST_GGUF="$$model"; cargo test --workspace
	scripts/clients.sh

clients: setup model ## let OpenAI's Python and npm packages and schemathesis talk to the server
	scripts/clients.sh

soak: setup ## half an hour of mixed load on the real server, of which `make test` has two minutes: INDRIK_SOAK=1800
	INDRIK_SOAK=$(or $(INDRIK_SOAK),1800) cargo test -p indrik --test load -- --nocapture

# Where it cannot be had, tests of real weights say that they did not run; under CI=true that is a failure.
model:
	cargo build
	@mkdir -p target && : > target/test-model
	target/debug/indrik pull $(MODEL) && target/debug/indrik pull $(MODEL) --json | sed -n 's/^ *"path": "\(.*\)",*$$/\1/p' > target/test-model \
		|| [ "$(CI)" != true ]

perplexity: setup ## 60 chunks of WikiText-2 with the 270M: give its test set with TEXT=wiki.test.raw
	cargo build --release
	$(INDRIK) pull $(MODEL)
	$(INDRIK) eval perplexity -m $(MODEL) --text "$(or $(TEXT),$(INDRIK_TEST_DATA)/wikitext2-test.txt)" -c 512 --chunks 60

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

curve: setup ## draw docs/batch.svg: tokens a second of 1 to 128 sequences, SHAPE=gemma3-27b
	cargo build --release
	$(INDRIK) bench --shape $(or $(SHAPE),gemma3-27b) -p 0 -n 32 -b 1,2,3,4,6,8,12,16,24,32,40,48,56,64,72,80,96,112,128 --plot docs/batch.svg

versus: setup ## compare with llama.cpp's prebuilt Vulkan library (needs Node 20): MODEL=file.gguf
	cargo build --release
	@model="$(MODEL)"; \
	if [ ! -f "$$model" ]; then \
		$(INDRIK) pull "$$model" && \
		model=$$($(INDRIK) pull "$$model" --json | sed -n 's/^ *"path": "\(.*\)",*$$/\1/p') || exit 1; \
	fi; \
	scripts/versus_llama_cpp.sh "$$model" $(ARGS)
