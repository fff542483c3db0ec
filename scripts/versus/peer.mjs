// One run of llama.cpp through node-llama-cpp, in its own process; prints JSON.
//
//   node peer.mjs probe                                    which library and device it would use
//   node peer.mjs run MODEL.gguf VOCAB PROMPT TOKENS DEPTH prefills PROMPT tokens, decodes TOKENS at DEPTH
//
// GGML_VK_VISIBLE_DEVICES must be the Vulkan index of the device: llama.cpp ignores CPU drivers otherwise.

import { readFileSync } from "node:fs";
import { getLlama, LlamaLogLevel } from "node-llama-cpp";

// The token ids of `indrik bench`: `tokens` in crates/cli/src/commands/bench/speed.rs.
const ids = (count, vocab) => Array.from({ length: count }, (_, i) => (i * 7919 + 13) % vocab);

// Stop tokens are ignored, so that the requested number of tokens is generated.
const GREEDY = { temperature: 0, yieldEogToken: true };

const log = [];

async function open() {
    const llama = await getLlama({
        gpu: "vulkan",
        build: "never",
        skipDownload: true,
        progressLogs: false,
        logLevel: LlamaLogLevel.info,
        logger: (_level, message) => log.push(message),
    });
    const description = JSON.parse(
        readFileSync(new URL("./node_modules/node-llama-cpp/package.json", import.meta.url)),
    );
    const about = {
        node_llama_cpp: description.version,
        release: llama.llamaCppRelease.release,
        gpu: llama.gpu,
        devices: await llama.getGpuDeviceNames(),
    };
    return { llama, about };
}

// Seconds to the first token after `prompt`, and from there to the end of `tokens` more. The first token has been sampled,
// so the GPU has finished the prompt; without sampling the call would return earlier.
async function timed(sequence, prompt, tokens) {
    await sequence.clearHistory();
    const start = performance.now();
    let first;
    let generated = 0;
    for await (const _ of sequence.evaluate(prompt, GREEDY)) {
        first ??= performance.now();
        if (generated === tokens) break;
        generated += 1;
    }
    if (generated !== tokens) throw new Error(`llama.cpp generated ${generated} tokens instead of ${tokens}`);
    return { prompt: (first - start) / 1e3, tokens: (performance.now() - first) / 1e3 };
}

// Decode time by llama.cpp's own counters since they were last printed.
async function ownClock(context) {
    log.length = 0;
    await context.printTimings();
    // The backend's messages arrive through the event loop.
    await new Promise((resolve) => setTimeout(resolve, 50));
    const line = /(?<!prompt )eval time = *([\d.]+) ms \/ *(\d+) runs/.exec(log.join("\n"));
    return line && { milliseconds: Number(line[1]), runs: Number(line[2]) };
}

async function run(modelPath, vocab, prompt, tokens, depth) {
    const { llama, about } = await open();
    const model = await llama.loadModel({ modelPath, gpuLayers: "max" });
    const context = await model.createContext({
        contextSize: Math.max(prompt, depth + tokens + 1) + 1,
        batchSize: 512,
        sequences: 1,
        flashAttention: true,
        performanceTracking: true,
        // One sequence: dispatch immediately.
        batching: { dispatchSchedule: (dispatch) => dispatch() },
    });
    // KV cache checkpoints are not needed and would cost llama.cpp time.
    const sequence = context.getSequence({ checkpoints: { max: 0, interval: false } });
    const text = ids(prompt, vocab);
    // Decoding needs at least one token of context, also at depth 0.
    const before = ids(Math.max(depth, 1), vocab);
    // The first run compiles pipelines and is not counted; the same holds for Indrik.
    if (prompt > 0) await timed(sequence, text, 0);
    if (tokens > 0) await timed(sequence, before, Math.min(tokens, 4));

    const result = {
        ...about,
        model: model.typeDescription,
        gpu_layers: model.gpuLayers,
        layers: model.fileInsights.totalLayers,
        flash_attention: context.flashAttention,
    };
    if (prompt > 0) {
        const { prompt: seconds } = await timed(sequence, text, 0);
        result.prefill_tokens_per_s = prompt / seconds;
    }
    if (tokens > 0) {
        await ownClock(context);
        const { tokens: seconds } = await timed(sequence, before, tokens);
        result.decode_tokens_per_s = tokens / seconds;
        const own = await ownClock(context);
        // More runs than tokens + 1 mean that the counters were not reset; they are ignored then.
        if (own && own.milliseconds > 0 && own.runs <= tokens + 1) {
            result.decode_tokens_per_s_own_clock = (own.runs / own.milliseconds) * 1e3;
        }
    }
    return result;
}

const [what, model, ...numbers] = process.argv.slice(2);
try {
    const result = what === "probe" ? (await open()).about : await run(model, ...numbers.map(Number));
    console.log(JSON.stringify(result));
    process.exit(0);
} catch (error) {
    console.log(JSON.stringify({ error: String(error?.message ?? error) }));
    process.exit(0);
}
