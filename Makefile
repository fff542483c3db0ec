# Every target does its own set-up. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo serve test clients scaleout soak withstand lint audit fmt webui webui-test shaders model models rdna3 bench curve versus perplexity dist image recording

INDRIK := target/release/indrik
# The models of `demo` and `serve`, and of `perplexity` and `versus`: a name in the store or a file.
CHAT_MODEL = $(or $(MODEL),smollm2)
BASE_MODEL = $(or $(MODEL),gemma3:270m)
QUESTION ?= What is the capital of France?

# Reference values and texts for tests that cannot be redistributed with the project. Without them, tests print what
# they skip.
ifneq ($(wildcard ../shared/data),)
export INDRIK_TEST_DATA ?= $(abspath ../shared/data)
endif

ifeq ($(CI),true)
# Incremental compilation only pays off from the second build on.
export CARGO_INCREMENTAL = 0
# The same random cases in every run, so that a change does not fail for what it has not touched: `make soak` tries new ones.
export PROPTEST_RNG_SEED = 8006
endif

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "%-11s%s\n", $$1, $$2 }'

setup: ## install missing dependencies: Vulkan loader, Mesa's drivers, validation layer, C++ compiler
	@scripts/setup.sh

demo: setup ## build, pull SmolLM2 135M (94 MiB) and ask it a question on the fastest device: MODEL=, QUESTION=
	cargo build --release
	$(INDRIK) devices
	@$(call ensure,$(CHAT_MODEL))
	$(INDRIK) chat -m "$(CHAT_MODEL)" -t 0 -p "$(QUESTION)"

serve: setup ## build, pull the same model and serve it to OpenAI clients on port 8006: MODEL=
	cargo build --release
	@$(call ensure,$(CHAT_MODEL))
	$(INDRIK) serve -m "$(CHAT_MODEL)"

# Pulls a model unless it is a file or complete in the store.
ensure = [ -e "$(1)" ] || $(INDRIK) inspect "$(1)" > /dev/null 2>&1 || $(INDRIK) pull "$(1)"

test: setup lint ## run everything that must pass before a change lands; needs no GPU
	# Builds the binary that pulls the models too, with the same features as the tests: nothing is compiled twice.
	cargo test $(no_shader_compiler) --no-run
	@$(pull_test_models)
	$(call export_path,GGUF,test-model) $(call export_path,SMOLLM2,test-smollm2) $(call export_path,QWEN,test-qwen) $(call export_path,MINILM,test-minilm) cargo test $(no_shader_compiler) --no-fail-fast
	scripts/clients.sh

# Exports the path of a real model for tests, if there is one.
export_path = path=$$(cat target/$(2) 2>/dev/null); [ -z "$$path" ] || export INDRIK_TEST_$(1)="$$path";

clients: setup model ## test the server with OpenAI's and Anthropic's Python and npm packages, schemathesis, and programs such as LangChain and Open WebUI; a real model's tool calls too after `make models`
	$(call export_path,QWEN,test-qwen) scripts/clients.sh
	scripts/programs.sh target/debug/indrik

# Of each other's packages, one has a command with the other's name: a virtual environment each.
scaleout: setup ## test two servers behind gateways (SMG, vllm-router) with the commands of docs/scale-out.md: restarts, kill -9, lost devices, full queues, prefix routing, KV events; check the Kubernetes objects (Python 3.11, npm, 4 minutes)
	cargo build
	$(call gateway,smg==1.13.0)
	$(call gateway,vllm-router==0.1.16)
	$(call gateway,kubernetes-validate==1.37.0)
	$(call gateway,pyzmq==27.3.0 msgspec==0.22.0)
	target/scaleout/kubernetes-validate/bin/kubernetes-validate --strict packaging/kubernetes/server.yaml
	$(call modules,$(kubernetes_models))
	scripts/check_manifests.mjs target/scaleout/modules packaging/kubernetes/monitoring.yaml packaging/kubernetes/inference-pool.yaml
	scripts/scaleout.py target/debug/indrik target/scaleout/smg/bin/smg target/scaleout/vllm-router/bin/vllm-router target/scaleout/pyzmq/bin/python crates/model/tests/fixtures/gguf_q8_0/model.gguf

kubernetes_models = @kubernetes-models/gateway-api@2.0.0 @kubernetes-models/keda@2.0.0 @kubernetes-models/prometheus-operator@6.0.0 \
	esbuild@0.28.2 js-yaml@4.1.0 typescript@7.0.2

# Installs npm packages at their versions, once.
modules = folder=target/scaleout/modules; [ "$$(cat $$folder/installed 2> /dev/null)" = "$(strip $(1))" ] || \
	{ rm -rf $$folder && mkdir -p $$folder && echo '{"private": true}' > $$folder/package.json && \
	npm install --prefix $$folder --silent --no-audit --no-fund $(1) && echo "$(strip $(1))" > $$folder/installed; }

# Installs packages at their versions, once.
gateway = folder=target/scaleout/$(firstword $(subst ==, ,$(1))); [ "$$(cat $$folder/installed 2> /dev/null)" = "$(1)" ] || \
	{ rm -rf $$folder && python3 -m venv $$folder && $$folder/bin/pip -q install $(1) && echo "$(1)" > $$folder/installed; }

soak: setup ## the long tests: load for INDRIK_SOAK=1800 seconds (`make test` has 40 of them), all kernels for RDNA3, the shader compiler, all models in all settings, random cases, long inputs
	cargo clippy -p indrik-shaders --all-targets
	cargo test -p indrik-shaders
	env -u PROPTEST_RNG_SEED PROPTEST_CASES=200000 cargo test -p indrik-engine --lib properties
	cargo test -p indrik-cli --test integration rdna3 -- --ignored
	INDRIK_TEST_ALL=1 cargo test -p indrik-model --lib killed
	INDRIK_TEST_ALL=1 cargo test -p indrik-model --test integration
	$(call export_path,GGUF,test-model) INDRIK_TEST_ALL=1 cargo test -p indrik-cli --test integration -- restart several_models npu::
	INDRIK_NPU_CASES=1000000 INDRIK_TEST_ALL=1 cargo test -p indrik-npu --test integration -- hostile mutation interpreter int8 amd
	$(call export_path,SMOLLM2,test-smollm2) cargo test -p indrik-text -p indrik-checkpoint --test integration _time -- --ignored
	INDRIK_SOAK=$(or $(INDRIK_SOAK),1800) cargo test -p indrik-cli --test load -- --nocapture

withstand: setup ## measure what slow, silent and flooding clients do to others, the table of docs/security.md
	cargo build --release
	scripts/withstand.py $(INDRIK) crates/model/tests/fixtures/gguf_q8_0/model.gguf

# Real models for tests, their paths in target/test-*. If one cannot be pulled, tests of real weights print that they were
# skipped; under CI=true that is a failure. Qwen is 1.04 GiB and slow without a GPU: tests use it if the store has it, and
# only `make models` pulls it.
model:
	cargo build
	@$(pull_test_models)

pull_test_models = mkdir -p target && : > target/test-model && : > target/test-smollm2 && : > target/test-minilm && \
	{ $(call fetch,gemma3:270m,test-model); } && { $(call fetch,smollm2,test-smollm2); } && \
	{ $(call fetch,all-minilm,test-minilm); } && \
	target/debug/indrik models --json | sed -n 's/^ *"path": "\(.*qwen2\.5-coder@1\.5b\.gguf\)",*$$/\1/p' > target/test-qwen

models: setup model ## pull the optional test model too: Qwen2.5-Coder 1.5B (1.04 GiB)
	$(call fetch,qwen2.5-coder:1.5b,test-qwen)

fetch = target/debug/indrik pull $(1) && target/debug/indrik pull $(1) --json | sed -n 's/^ *"path": "\(\/.*\)",*$$/\1/p' > target/$(2) \
	|| [ "$(CI)" != true ]

recording: setup ## record docs/demo.svg, the recording in README.md, from a real run (needs Python 3)
	cargo build --release
	target/recording/bin/python -c 'import pyte' 2> /dev/null || { python3 -m venv target/recording && target/recording/bin/pip -q install pyte==0.8.2; }
	target/recording/bin/python scripts/record_demo.py $(INDRIK)

perplexity: setup ## measure the perplexity of Gemma 3 270M on 60 chunks of WikiText-2: TEXT=wiki.test.raw
	cargo build --release
	@$(call ensure,$(BASE_MODEL))
	$(INDRIK) eval perplexity -m "$(BASE_MODEL)" --text "$(or $(TEXT),$(INDRIK_TEST_DATA)/wikitext2-test.txt)" -c 512 --chunks 60

# Covers every tracked file; `cargo fmt` sees only those reachable through `mod` lines.
rustfmt = git ls-files '*.rs' | xargs rustfmt --edition 2024 --config-path rustfmt.toml

lint: setup ## check formatting, clippy, API docs, Markdown, the web UI, that dependencies were audited
	$(rustfmt) --check
	cargo clippy $(no_shader_compiler) --all-targets
	RUSTDOCFLAGS="-D warnings" cargo doc $(no_shader_compiler) --no-deps --document-private-items
	scripts/check_docs.sh
	scripts/check_webui.sh
	scripts/audit.sh --recorded

audit: ## check licences, sources and bans of all dependencies with cargo-deny, after changing Cargo.lock or deny.toml
	scripts/audit.sh

fmt: ## format the code
	$(rustfmt)

webui: ## build the web UI from web/ to crates/server/webui, after changing it (needs Node 20)
	scripts/check_webui.sh --write

webui-test: setup ## test the web UI in Chromium, with a mock and with the real server; SCREENSHOTS=1 draws docs/webui-*.png
	cargo build
	scripts/webui_test.sh $(if $(SCREENSHOTS),--screenshots)

shaders: setup ## compile the kernels' shaders to crates/kernels/generated, after changing one
	cargo run -q -p indrik-shaders

# The shader compiler is built by `make shaders` and `make soak` alone: glslang is minutes of C++. What it wrote has
# fingerprints, which every build checks.
no_shader_compiler = --workspace --exclude indrik-shaders

rdna3: setup ## write docs/performance/rdna3.{csv,md}: every kernel as Mesa compiles it for RDNA3
	cargo build --release
	scripts/rdna3.sh $(INDRIK) docs/performance

bench: setup ## measure memory bandwidth and a matrix product on this device
	cargo build --release
	$(INDRIK) bench --bandwidth
	$(INDRIK) bench --gemv 43008x5376

curve: setup ## redraw docs/batch.svg, throughput of 1 to 256 sequences: SHAPE=gemma3-27b
	cargo build --release
	$(INDRIK) bench --shape $(or $(SHAPE),gemma3-27b) -p 0 -n 32 -b 1,2,3,4,6,8,12,16,24,32,40,48,56,64,72,80,96,112,128,160,192,224,256 --plot docs/batch.svg

versus: setup ## compare with llama.cpp's prebuilt Vulkan library (needs Node 20): MODEL=file.gguf, ARGS=
	cargo build --release
	@model="$(BASE_MODEL)"; \
	if [ ! -f "$$model" ]; then \
		$(INDRIK) pull "$$model" && \
		model=$$($(INDRIK) pull "$$model" --json | sed -n 's/^ *"path": "\(.*\)",*$$/\1/p') || exit 1; \
	fi; \
	scripts/versus_llama_cpp.sh "$$model" $(ARGS)

dist: setup ## build the release tarball and the Debian package in target/packages, for glibc 2.31 and later
	scripts/dist.sh

# The binary of `make dist` takes the place of the image's build stage, so that all packages hold the same one.
image: ## build the container image with podman, buildah or docker, from the binary of `make dist`
	scripts/image.sh
