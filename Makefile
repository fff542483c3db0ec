# Each target does all the set-up it needs. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo serve test clients soak lint fmt model models rdna3 bench curve versus perplexity

INDRIK := target/release/indrik
# What `demo` and `serve` run, and what `perplexity` and `versus` measure: a name or a file.
CHAT_MODEL = $(or $(MODEL),smollm2)
BASE_MODEL = $(or $(MODEL),gemma3:270m)
QUESTION ?= What is the capital of France?

# Data for tests that is not ours to keep in the project: reference values and texts. Tests say what they leave out without it.
ifneq ($(wildcard ../shared/data),)
export INDRIK_TEST_DATA ?= $(abspath ../shared/data)
endif

# What is built once has no use for the notes that make a second build shorter.
ifeq ($(CI),true)
export CARGO_INCREMENTAL = 0
endif

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "%-8s %s\n", $$1, $$2 }'

setup: ## install what is missing: Vulkan loader, Mesa's drivers, validation layer, C++ compiler
	@scripts/setup.sh

demo: setup ## build, fetch SmolLM2 135M (94 MiB) and ask it a question, on the best device of this machine: MODEL=, QUESTION=
	cargo build --release
	$(INDRIK) devices
	@$(call here,$(CHAT_MODEL))
	$(INDRIK) chat -m "$(CHAT_MODEL)" -t 0 -p "$(QUESTION)"

serve: setup ## the same model, for OpenAI's clients on port 8006: MODEL=
	cargo build --release
	@$(call here,$(CHAT_MODEL))
	$(INDRIK) serve -m "$(CHAT_MODEL)"

# Fetches a model that is neither a file nor in the store, or there but not whole.
here = [ -e "$(1)" ] || $(INDRIK) inspect "$(1)" > /dev/null 2>&1 || $(INDRIK) pull "$(1)"

test: setup lint model ## everything that must pass before a change lands; needs no GPU
	$(call named,GGUF,test-model) $(call named,SMOLLM2,test-smollm2) $(call named,QWEN,test-qwen) cargo test --workspace
	scripts/clients.sh

# Tells tests where a real model is, if it is somewhere.
named = path=$$(cat target/$(2) 2>/dev/null); [ -z "$$path" ] || export INDRIK_TEST_$(1)="$$path";

clients: setup model ## let OpenAI's Python and npm packages and schemathesis talk to the server; after `make models` Qwen calls tools, which takes minutes more
	$(call named,QWEN,test-qwen) scripts/clients.sh

soak: setup ## half an hour of mixed load on the real server, of which `make test` has two minutes: INDRIK_SOAK=1800
	INDRIK_SOAK=$(or $(INDRIK_SOAK),1800) cargo test -p indrik-cli --test load -- --nocapture

# Real models for tests, their paths in target/test-*. Where one cannot be had, tests of real weights say that they did not run;
# under CI=true that is a failure. Qwen has 1.04 GiB and is slow without a GPU: it is used where the store has it, and fetched by
# `make models` alone.
model:
	cargo build
	@: > target/test-model && : > target/test-smollm2
	$(call fetch,gemma3:270m,test-model)
	$(call fetch,smollm2,test-smollm2)
	@target/debug/indrik models --json | sed -n 's/^ *"path": "\(.*qwen2\.5-coder@1\.5b\.gguf\)",*$$/\1/p' > target/test-qwen

models: setup model ## fetch what tests of real weights can use beyond what `make test` fetches: Qwen2.5-Coder 1.5B (1.04 GiB)
	$(call fetch,qwen2.5-coder:1.5b,test-qwen)

fetch = target/debug/indrik pull $(1) && target/debug/indrik pull $(1) --json | sed -n 's/^ *"path": "\(.*\)",*$$/\1/p' > target/$(2) \
	|| [ "$(CI)" != true ]

perplexity: setup ## 60 chunks of WikiText-2 with the 270M: give its test set with TEXT=wiki.test.raw
	cargo build --release
	@$(call here,$(BASE_MODEL))
	$(INDRIK) eval perplexity -m "$(BASE_MODEL)" --text "$(or $(TEXT),$(INDRIK_TEST_DATA)/wikitext2-test.txt)" -c 512 --chunks 60

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
	@model="$(BASE_MODEL)"; \
	if [ ! -f "$$model" ]; then \
		$(INDRIK) pull "$$model" && \
		model=$$($(INDRIK) pull "$$model" --json | sed -n 's/^ *"path": "\(.*\)",*$$/\1/p') || exit 1; \
	fi; \
	scripts/versus_llama_cpp.sh "$$model" $(ARGS)
