// Validates the results of both engines and prints the comparison.
//
//   node report.mjs device DEVICES.json                the index of the device that Indrik uses
//   node report.mjs vocab INSPECT.json                 vocabulary size of the model
//   node report.mjs check DEVICES.json PROBE.json      0: same device through Vulkan, 3: llama.cpp cannot use it, 1: error
//   node report.mjs table FOLDER MODEL [--json]        FOLDER contains devices.json, inspect.json, version,
//                                                      ours-N.json and theirs-N.json

import { readFileSync, readdirSync } from "node:fs";
import { basename, join } from "node:path";

const CANNOT_USE_DEVICE = 3;
const read = (path) => JSON.parse(readFileSync(path, "utf8"));

class Complaint extends Error {}

function chosen(devices) {
    const device = devices.devices.find((device) => device.chosen);
    if (!device) throw new Complaint("Indrik found no such device: `indrik devices` lists them");
    return device;
}

// The reason why llama.cpp cannot use this device, or null. Throws if a comparison would be invalid.
export function judge(device, probe) {
    if (probe.error) {
        throw new Complaint(`llama.cpp's Vulkan library cannot be loaded: ${probe.error}`);
    }
    if (probe.gpu !== "vulkan") {
        throw new Complaint(
            `node-llama-cpp runs on ${probe.gpu || "the CPU"}, not through Vulkan: the comparison would be invalid. ` +
                "Its Vulkan library exists for Linux on x86-64 only",
        );
    }
    if (probe.devices.length === 0) {
        return `llama.cpp's Vulkan library does not accept ${device.name}`;
    }
    if (probe.devices.length !== 1 || probe.devices[0] !== device.name) {
        throw new Complaint(
            `not the same device: Indrik uses ${device.name}, llama.cpp ${probe.devices.join(" and ")}. Choose one with --device`,
        );
    }
    return null;
}

const median = (values) => {
    const sorted = values.toSorted((a, b) => a - b);
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

function figure(values) {
    const known = values.filter((value) => value !== undefined && value !== null);
    if (known.length === 0) return null;
    return { median: median(known), slowest: Math.min(...known), fastest: Math.max(...known), runs: known };
}

// The GPU scheme and size of each encoding in the file.
const schemes = (encodings) =>
    Object.entries(encodings).map(([encoding, { scheme, total }]) => ({ encoding, scheme, bytes: total.gpu_bytes }));

// The comparison as data.
export function compare({ device, version, model, encodings, ours, theirs }) {
    for (const run of theirs) {
        if (run.error) throw new Complaint(`llama.cpp failed: ${run.error}`);
        const refused = judge(device, run);
        if (refused) throw new Complaint(refused);
        if (run.gpu_layers < run.layers) {
            throw new Complaint(`llama.cpp has only ${run.gpu_layers} of ${run.layers} layers on the GPU: the comparison would be invalid`);
        }
    }
    const wrong = ours.find((run) => run.device !== device.name);
    if (wrong) throw new Complaint(`not the same device: ${device.name} was chosen, Indrik ran on ${wrong.device}`);
    const rows = [];
    const row = (what, mine, peer) =>
        rows.push({ what, indrik: mine, llama_cpp: peer, ratio: mine && peer ? mine.median / peer.median : null });
    for (const [index, run] of ours[0].runs.entries()) {
        const mine = figure(ours.map((one) => one.runs[index].tokens_per_s));
        if (run.kind === "prefill") {
            row(`prefill ${run.prompt}`, mine, figure(theirs.map((one) => one.prefill_tokens_per_s)));
        } else {
            const what = `decode ${run.tokens} at depth ${run.depth}`;
            row(what, mine, figure(theirs.map((one) => one.decode_tokens_per_s)));
            const own = figure(theirs.map((one) => one.decode_tokens_per_s_own_clock));
            if (own) row("same, by llama.cpp's own clock", mine, own);
        }
    }
    const peer = theirs[0];
    return {
        device: device.name,
        driver: device.driver,
        model: basename(model),
        indrik: { version, in_memory: schemes(encodings) },
        llama_cpp: peer
            ? {
                  release: peer.release,
                  node_llama_cpp: peer.node_llama_cpp,
                  device: peer.devices[0],
                  model: peer.model,
                  flash_attention: peer.flash_attention,
              }
            : null,
        rows,
    };
}

const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });

export function markdown(result) {
    const cell = (one) => (one ? `${number(one.median)} (${number(one.slowest)}–${number(one.fastest)})` : "–");
    const { indrik, llama_cpp: peer } = result;
    const memory = indrik.in_memory.map(
        ({ encoding, scheme, bytes }) => `${encoding} as ${scheme} (${number(bytes / 2 ** 20)} MiB)`,
    );
    const lines = [
        `${result.model} on ${result.device}, ${result.driver}`,
        "",
        `| tok/s | Indrik | llama.cpp | Indrik ÷ llama.cpp |`,
        `|---|---:|---:|---:|`,
        ...result.rows.map(
            (row) => `| ${row.what} | ${cell(row.indrik)} | ${cell(row.llama_cpp)} | ${row.ratio ? `${row.ratio.toFixed(2)}×` : "–"} |`,
        ),
        "",
        `Median (slowest–fastest) of ${result.rows[0].indrik.runs.length} runs, each engine in its own process` +
            (peer ? ", alternating" : "") +
            ". Wall clock, excluding loading, tuning and one warm-up run; same file, token ids and device; greedy, one sequence.",
        `Indrik: ${indrik.version}; weights in memory: ${memory.join(", ")}.`,
        peer
            ? `llama.cpp: ${peer.release}, prebuilt Vulkan library of node-llama-cpp ${peer.node_llama_cpp} on ${peer.device}; ${peer.model}; ` +
              `batches of 512, ${peer.flash_attention ? "with" : "without"} flash attention. Its wall clock includes the calls from Node; its own clock excludes them and sampling.`
            : "llama.cpp: not measured.",
    ];
    return lines.join("\n") + "\n";
}

function main([what, ...rest]) {
    if (what === "device") {
        console.log(chosen(read(rest[0])).index);
    } else if (what === "vocab") {
        console.log(read(rest[0]).config.vocab);
    } else if (what === "check") {
        const refused = judge(chosen(read(rest[0])), read(rest[1]));
        if (refused) {
            console.error(`versus: ${refused}`);
            return CANNOT_USE_DEVICE;
        }
    } else if (what === "table") {
        const [folder, model, form] = rest;
        const of = (engine) => {
            const names = readdirSync(folder).filter((name) => name.startsWith(`${engine}-`));
            return names.toSorted().map((name) => read(join(folder, name)));
        };
        const version = readFileSync(join(folder, "version"), "utf8").trim();
        const result = compare({
            device: chosen(read(join(folder, "devices.json"))),
            version,
            model,
            encodings: read(join(folder, "inspect.json")).encodings,
            ours: of("ours"),
            theirs: of("theirs"),
        });
        console.log(form === "--json" ? JSON.stringify(result, null, 2) : markdown(result).trimEnd());
    } else {
        throw new Complaint("expected device, vocab, check or table");
    }
    return 0;
}

try {
    process.exitCode = main(process.argv.slice(2));
} catch (error) {
    if (!(error instanceof Complaint)) throw error;
    console.error(`versus: ${error.message}`);
    process.exitCode = 1;
}
