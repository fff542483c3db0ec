// One run of llama.cpp through node-llama-cpp, in a process of its own; prints JSON.
//
//   node peer.mjs probe                                    which library and device it would use
//   node peer.mjs run MODEL.gguf VOCAB PROMPT TOKENS DEPTH reads PROMPT tokens, writes TOKENS after DEPTH others
//
// GGML_VK_VISIBLE_DEVICES must name the device by its Vulkan index: llama.cpp leaves out CPU drivers otherwise.

import { readFileSync } from "node:fs";
import { getLlama, LlamaLogLevel } from "node-llama-cpp";

// The ids that `indrik bench` reads: `tokens` in crates/cli/src/commands/bench/speed.rs.
const ids = (count, vocab) => Array.from({ length: count }, (_, i) => (i * 7919 + 13) % vocab);

// An end token is a token like any other here, so that as many are written as were asked for.
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

// Seconds until the first token after `prompt`, and from there until `tokens` more. The first one has been sampled when it
// comes, so the GPU is done with the prompt: without sampling the call would return while it still works.
async function timed(sequence, prompt, tokens) {
    await sequence.clearHistory();
    const start = performance.now();
    let first;
    let written = 0;
    for await (const _ of sequence.evaluate(prompt, GREEDY)) {
        first ??= performance.now();
        if (written === tokens) break;
        written += 1;
    }
    if (written !== tokens) throw new Error(`llama.cpp wrote ${written} tokens instead of ${tokens}`);
    return { prompt: (first - start) / 1e3, tokens: (performance.now() - first) / 1e3 };
}

// Milliseconds a token of decoding by llama.cpp's own counters, since the last time they were asked for.
async function ownClock(context) {
    log.length = 0;
    await context.printTimings();
    // The backend's messages arrive by way of the event loop.
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
        // One sequence: nothing to wait for.
        batching: { dispatchSchedule: (dispatch) => dispatch() },
    });
    // Copies of the KV cache for going back are of no use here and would cost the peer time.
    const sequence = context.getSequence({ checkpoints: { max: 0, interval: false } });
    const text = ids(prompt, vocab);
    // Nothing can be written after nothing: at depth 0 a single token comes before.
    const before = ids(Math.max(depth, 1), vocab);
    // Pipelines are compiled in the first run, which does not count; the same for ours.
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
        // More runs than tokens and the first one's mean that the counters were not set back: then they say nothing.
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
