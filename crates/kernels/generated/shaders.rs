/// Generated from `src/attention/paged/attention_combine.comp`.
pub mod attention_combine {
    /// Push constants of `attention_combine.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub split_outputs: gpu::Address,
        /// Read by the shader.
        pub max_and_sum: gpu::Address,
        /// Read by the shader.
        pub positions: gpu::Address,
        /// Read by the shader.
        pub last_visible: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Written by the shader.
        pub o: gpu::Address,
        /// `uint` in the shader.
        pub heads: u32,
        /// `uint` in the shader.
        pub o_stride: u32,
        /// `uint` in the shader.
        pub window: u32,
        /// `uint` in the shader.
        pub splits: u32,
        /// `uint` in the shader.
        pub min_blocks: u32,
        /// `uint` in the shader.
        pub block: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 72;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.split_outputs, gpu::Access::Read);
            writer.buffer(8, &self.max_and_sum, gpu::Access::Read);
            writer.buffer(16, &self.positions, gpu::Access::Read);
            writer.buffer(24, &self.last_visible, gpu::Access::Read);
            writer.buffer(32, &self.active_rows, gpu::Access::Read);
            writer.buffer(40, &self.o, gpu::Access::Write);
            writer.word(48, self.heads);
            writer.word(52, self.o_stride);
            writer.word(56, self.window);
            writer.word(60, self.splits);
            writer.word(64, self.min_blocks);
            writer.word(68, self.block);
        }
    }

    /// Specialisation constants of `attention_combine.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `HEAD_DIM`: `uint`, constant 1.
        pub head_dim: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 64, head_dim: 256 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, self.head_dim]
        }
    }

    /// `attention_combine.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "attention_combine.t0",
        spirv: include_bytes!("attention_combine.t0.spv"),
        push_size: 72,
        constant_ids: &[0, 1],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `attention_combine.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/attention/decode/attention_decode.comp`.
pub mod attention_decode {
    /// Push constants of `attention_decode.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub qkv: gpu::Address,
        /// Read by the shader.
        pub bias: gpu::Address,
        /// Read by the shader.
        pub q_weight: gpu::Address,
        /// Read by the shader.
        pub k_weight: gpu::Address,
        /// Read by the shader.
        pub coarse: gpu::Address,
        /// Read by the shader.
        pub fine: gpu::Address,
        /// Read and written by the shader.
        pub k: gpu::Address,
        /// Read and written by the shader.
        pub v: gpu::Address,
        /// Read by the shader.
        pub positions: gpu::Address,
        /// Read by the shader.
        pub slots: gpu::Address,
        /// Read by the shader.
        pub table: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Written by the shader.
        pub o: gpu::Address,
        /// Written by the shader.
        pub o_scales: gpu::Address,
        /// Read and written by the shader.
        pub scratch: gpu::Address,
        /// `uint` in the shader.
        pub qkv_stride_and_part: u32,
        /// `uint` in the shader.
        pub table_stride: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 128;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.qkv, gpu::Access::Read);
            writer.buffer(8, &self.bias, gpu::Access::Read);
            writer.buffer(16, &self.q_weight, gpu::Access::Read);
            writer.buffer(24, &self.k_weight, gpu::Access::Read);
            writer.buffer(32, &self.coarse, gpu::Access::Read);
            writer.buffer(40, &self.fine, gpu::Access::Read);
            writer.buffer(48, &self.k, gpu::Access::ReadWrite);
            writer.buffer(56, &self.v, gpu::Access::ReadWrite);
            writer.buffer(64, &self.positions, gpu::Access::Read);
            writer.buffer(72, &self.slots, gpu::Access::Read);
            writer.buffer(80, &self.table, gpu::Access::Read);
            writer.buffer(88, &self.active_rows, gpu::Access::Read);
            writer.buffer(96, &self.o, gpu::Access::Write);
            writer.buffer(104, &self.o_scales, gpu::Access::Write);
            writer.buffer(112, &self.scratch, gpu::Access::ReadWrite);
            writer.word(120, self.qkv_stride_and_part);
            writer.word(124, self.table_stride);
        }
    }

    /// Specialisation constants of `attention_decode.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `LANES`: `uint`, constant 1.
        pub lanes: u32,
        /// `HEAD_DIM`: `uint`, constant 2.
        pub head_dim: u32,
        /// `HEADS`: `uint`, constant 3.
        pub heads: u32,
        /// `KEYS`: `uint`, constant 4.
        pub keys: u32,
        /// `PAGE_SIZE`: `uint`, constant 5.
        pub page_size: u32,
        /// `KV_BITS`: `uint`, constant 6.
        pub kv_bits: u32,
        /// `QUERY_HEADS`: `uint`, constant 7.
        pub query_heads: u32,
        /// `KV_HEADS`: `uint`, constant 8.
        pub kv_heads: u32,
        /// `WINDOW`: `uint`, constant 9.
        pub window: u32,
        /// `SPLITS`: `uint`, constant 10.
        pub splits: u32,
        /// `MIN_BLOCKS`: `uint`, constant 11.
        pub min_blocks: u32,
        /// `QK_NORM`: `bool`, constant 12.
        pub qk_norm: bool,
        /// `QKV_BIAS`: `bool`, constant 13.
        pub qkv_bias: bool,
        /// `INTERLEAVED`: `bool`, constant 14.
        pub interleaved: bool,
        /// `OUTPUT`: `uint`, constant 15.
        pub output: u32,
        /// `EPSILON`: `float`, constant 16.
        pub epsilon: f32,
        /// `SCALE`: `float`, constant 17.
        pub scale: f32,
        /// `PARTIALS`: `uint`, constant 18.
        pub partials: u32,
        /// `KEYS_AND_VALUES`: `uint`, constant 19.
        pub keys_and_values: u32,
        /// `VALUE_NORM`: `bool`, constant 20.
        pub value_norm: bool,
        /// `TEMPERATURE_BETA`: `float`, constant 21.
        pub temperature_beta: f32,
        /// `TEMPERATURE_ORIGINAL`: `uint`, constant 22.
        pub temperature_original: u32,
    }

    impl Default for Constants {
        #[allow(clippy::approx_constant)]
        fn default() -> Self {
            Self {
                threads: 256,
                lanes: 8,
                head_dim: 128,
                heads: 2,
                keys: 2,
                page_size: 64,
                kv_bits: 16,
                query_heads: 32,
                kv_heads: 16,
                window: 0,
                splits: 1,
                min_blocks: 1,
                qk_norm: false,
                qkv_bias: false,
                interleaved: false,
                output: 0,
                epsilon: 0.0,
                scale: 1.0,
                partials: 1,
                keys_and_values: 0,
                value_norm: false,
                temperature_beta: 0.0,
                temperature_original: 0,
            }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                self.lanes,
                self.head_dim,
                self.heads,
                self.keys,
                self.page_size,
                self.kv_bits,
                self.query_heads,
                self.kv_heads,
                self.window,
                self.splits,
                self.min_blocks,
                u32::from(self.qk_norm),
                u32::from(self.qkv_bias),
                u32::from(self.interleaved),
                self.output,
                self.epsilon.to_bits(),
                self.scale.to_bits(),
                self.partials,
                self.keys_and_values,
                u32::from(self.value_norm),
                self.temperature_beta.to_bits(),
                self.temperature_original,
            ]
        }
    }

    /// `attention_decode.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "attention_decode.t0",
        spirv: include_bytes!("attention_decode.t0.spv"),
        push_size: 128,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `attention_decode.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "attention_decode.t1",
        spirv: include_bytes!("attention_decode.t1.spv"),
        push_size: 128,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `attention_decode.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/attention/flash/attention_flash.comp`.
pub mod attention_flash {
    /// Push constants of `attention_flash.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub q: gpu::Address,
        /// Read by the shader.
        pub k: gpu::Address,
        /// Read by the shader.
        pub v: gpu::Address,
        /// Read by the shader.
        pub positions: gpu::Address,
        /// Read by the shader.
        pub last_visible: gpu::Address,
        /// Read by the shader.
        pub slots: gpu::Address,
        /// Read by the shader.
        pub table: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Read by the shader.
        pub chunk_ends: gpu::Address,
        /// Written by the shader.
        pub o: gpu::Address,
        /// `uint` in the shader.
        pub heads: u32,
        /// `uint` in the shader.
        pub kv_heads: u32,
        /// `uint` in the shader.
        pub o_stride: u32,
        /// `uint` in the shader.
        pub table_stride: u32,
        /// `uint` in the shader.
        pub window: u32,
        /// `uint` in the shader.
        pub chunks: u32,
        /// `uint` in the shader.
        pub row_units: u32,
        /// `float` in the shader.
        pub scale: f32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 112;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.q, gpu::Access::Read);
            writer.buffer(8, &self.k, gpu::Access::Read);
            writer.buffer(16, &self.v, gpu::Access::Read);
            writer.buffer(24, &self.positions, gpu::Access::Read);
            writer.buffer(32, &self.last_visible, gpu::Access::Read);
            writer.buffer(40, &self.slots, gpu::Access::Read);
            writer.buffer(48, &self.table, gpu::Access::Read);
            writer.buffer(56, &self.active_rows, gpu::Access::Read);
            writer.buffer(64, &self.chunk_ends, gpu::Access::Read);
            writer.buffer(72, &self.o, gpu::Access::Write);
            writer.word(80, self.heads);
            writer.word(84, self.kv_heads);
            writer.word(88, self.o_stride);
            writer.word(92, self.table_stride);
            writer.word(96, self.window);
            writer.word(100, self.chunks);
            writer.word(104, self.row_units);
            writer.word(108, self.scale.to_bits());
        }
    }

    /// Specialisation constants of `attention_flash.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `LANES`: `uint`, constant 1.
        pub lanes: u32,
        /// `HEAD_DIM`: `uint`, constant 2.
        pub head_dim: u32,
        /// `KEYS`: `uint`, constant 3.
        pub keys: u32,
        /// `PAGE_SIZE`: `uint`, constant 4.
        pub page_size: u32,
        /// `KV_BITS`: `uint`, constant 5.
        pub kv_bits: u32,
        /// `QUERIES_IN_REGISTERS`: `bool`, constant 6.
        pub queries_in_registers: bool,
        /// `O_F16`: `bool`, constant 7.
        pub o_f16: bool,
        /// `CHAINS`: `uint`, constant 8.
        pub chains: u32,
        /// `INDEPENDENT_ROWS`: `bool`, constant 9.
        pub independent_rows: bool,
        /// `HEAD_PARTS`: `uint`, constant 10.
        pub head_parts: u32,
        /// `SOFTMAX_IN_REGISTERS`: `bool`, constant 11.
        pub softmax_in_registers: bool,
        /// `ROW_TILES`: `uint`, constant 12.
        pub row_tiles: u32,
        /// `FROM_ROWS`: `bool`, constant 13.
        pub from_rows: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self {
                threads: 128,
                lanes: 32,
                head_dim: 128,
                keys: 32,
                page_size: 64,
                kv_bits: 16,
                queries_in_registers: true,
                o_f16: true,
                chains: 2,
                independent_rows: false,
                head_parts: 1,
                softmax_in_registers: false,
                row_tiles: 1,
                from_rows: false,
            }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                self.lanes,
                self.head_dim,
                self.keys,
                self.page_size,
                self.kv_bits,
                u32::from(self.queries_in_registers),
                u32::from(self.o_f16),
                self.chains,
                u32::from(self.independent_rows),
                self.head_parts,
                u32::from(self.softmax_in_registers),
                self.row_tiles,
                u32::from(self.from_rows),
            ]
        }
    }

    /// `attention_flash.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "attention_flash.t1",
        spirv: include_bytes!("attention_flash.t1.spv"),
        push_size: 112,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `attention_flash.comp` at tier T2.
    pub static T2: gpu::Shader = gpu::Shader {
        name: "attention_flash.t2",
        spirv: include_bytes!("attention_flash.t2.spv"),
        push_size: 112,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `attention_flash.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(1, &T1), (2, &T2)];
}

/// Generated from `src/attention/paged/attention_paged.comp`.
pub mod attention_paged {
    /// Push constants of `attention_paged.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub q: gpu::Address,
        /// Read by the shader.
        pub k: gpu::Address,
        /// Read by the shader.
        pub v: gpu::Address,
        /// Read by the shader.
        pub positions: gpu::Address,
        /// Read by the shader.
        pub last_visible: gpu::Address,
        /// Read by the shader.
        pub slots: gpu::Address,
        /// Read by the shader.
        pub table: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Read by the shader.
        pub chunk_ends: gpu::Address,
        /// Written by the shader.
        pub o: gpu::Address,
        /// Written by the shader.
        pub max_and_sum: gpu::Address,
        /// `uint` in the shader.
        pub heads: u32,
        /// `uint` in the shader.
        pub kv_heads: u32,
        /// `uint` in the shader.
        pub o_stride: u32,
        /// `uint` in the shader.
        pub table_stride: u32,
        /// `uint` in the shader.
        pub window: u32,
        /// `uint` in the shader.
        pub splits: u32,
        /// `uint` in the shader.
        pub min_blocks: u32,
        /// `uint` in the shader.
        pub chunks: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 120;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.q, gpu::Access::Read);
            writer.buffer(8, &self.k, gpu::Access::Read);
            writer.buffer(16, &self.v, gpu::Access::Read);
            writer.buffer(24, &self.positions, gpu::Access::Read);
            writer.buffer(32, &self.last_visible, gpu::Access::Read);
            writer.buffer(40, &self.slots, gpu::Access::Read);
            writer.buffer(48, &self.table, gpu::Access::Read);
            writer.buffer(56, &self.active_rows, gpu::Access::Read);
            writer.buffer(64, &self.chunk_ends, gpu::Access::Read);
            writer.buffer(72, &self.o, gpu::Access::Write);
            writer.buffer(80, &self.max_and_sum, gpu::Access::Write);
            writer.word(88, self.heads);
            writer.word(92, self.kv_heads);
            writer.word(96, self.o_stride);
            writer.word(100, self.table_stride);
            writer.word(104, self.window);
            writer.word(108, self.splits);
            writer.word(112, self.min_blocks);
            writer.word(116, self.chunks);
        }
    }

    /// Specialisation constants of `attention_paged.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `LANES`: `uint`, constant 1.
        pub lanes: u32,
        /// `HEAD_DIM`: `uint`, constant 2.
        pub head_dim: u32,
        /// `ROWS`: `uint`, constant 3.
        pub rows: u32,
        /// `HEADS`: `uint`, constant 4.
        pub heads: u32,
        /// `KEYS`: `uint`, constant 5.
        pub keys: u32,
        /// `PAGE_SIZE`: `uint`, constant 6.
        pub page_size: u32,
        /// `KV_BITS`: `uint`, constant 7.
        pub kv_bits: u32,
        /// `SPLIT`: `bool`, constant 8.
        pub split: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self {
                threads: 128,
                lanes: 32,
                head_dim: 256,
                rows: 1,
                heads: 4,
                keys: 2,
                page_size: 64,
                kv_bits: 16,
                split: false,
            }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                self.lanes,
                self.head_dim,
                self.rows,
                self.heads,
                self.keys,
                self.page_size,
                self.kv_bits,
                u32::from(self.split),
            ]
        }
    }

    /// `attention_paged.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "attention_paged.t0",
        spirv: include_bytes!("attention_paged.t0.spv"),
        push_size: 120,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `attention_paged.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "attention_paged.t1",
        spirv: include_bytes!("attention_paged.t1.spv"),
        push_size: 120,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `attention_paged.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/attention/paged/attention_paged_wide.comp`.
pub mod attention_paged_wide {
    /// Push constants of `attention_paged_wide.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub q: gpu::Address,
        /// Read by the shader.
        pub k: gpu::Address,
        /// Read by the shader.
        pub v: gpu::Address,
        /// Read by the shader.
        pub positions: gpu::Address,
        /// Read by the shader.
        pub last_visible: gpu::Address,
        /// Read by the shader.
        pub slots: gpu::Address,
        /// Read by the shader.
        pub table: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Read by the shader.
        pub chunk_ends: gpu::Address,
        /// Written by the shader.
        pub o: gpu::Address,
        /// Written by the shader.
        pub max_and_sum: gpu::Address,
        /// `uint` in the shader.
        pub heads: u32,
        /// `uint` in the shader.
        pub kv_heads: u32,
        /// `uint` in the shader.
        pub o_stride: u32,
        /// `uint` in the shader.
        pub table_stride: u32,
        /// `uint` in the shader.
        pub window: u32,
        /// `uint` in the shader.
        pub splits: u32,
        /// `uint` in the shader.
        pub min_blocks: u32,
        /// `uint` in the shader.
        pub chunks: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 120;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.q, gpu::Access::Read);
            writer.buffer(8, &self.k, gpu::Access::Read);
            writer.buffer(16, &self.v, gpu::Access::Read);
            writer.buffer(24, &self.positions, gpu::Access::Read);
            writer.buffer(32, &self.last_visible, gpu::Access::Read);
            writer.buffer(40, &self.slots, gpu::Access::Read);
            writer.buffer(48, &self.table, gpu::Access::Read);
            writer.buffer(56, &self.active_rows, gpu::Access::Read);
            writer.buffer(64, &self.chunk_ends, gpu::Access::Read);
            writer.buffer(72, &self.o, gpu::Access::Write);
            writer.buffer(80, &self.max_and_sum, gpu::Access::Write);
            writer.word(88, self.heads);
            writer.word(92, self.kv_heads);
            writer.word(96, self.o_stride);
            writer.word(100, self.table_stride);
            writer.word(104, self.window);
            writer.word(108, self.splits);
            writer.word(112, self.min_blocks);
            writer.word(116, self.chunks);
        }
    }

    /// Specialisation constants of `attention_paged_wide.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `LANES`: `uint`, constant 1.
        pub lanes: u32,
        /// `HEAD_DIM`: `uint`, constant 2.
        pub head_dim: u32,
        /// `ROWS`: `uint`, constant 3.
        pub rows: u32,
        /// `HEADS`: `uint`, constant 4.
        pub heads: u32,
        /// `KEYS`: `uint`, constant 5.
        pub keys: u32,
        /// `PAGE_SIZE`: `uint`, constant 6.
        pub page_size: u32,
        /// `KV_BITS`: `uint`, constant 7.
        pub kv_bits: u32,
        /// `SPLIT`: `bool`, constant 8.
        pub split: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self {
                threads: 128,
                lanes: 32,
                head_dim: 256,
                rows: 1,
                heads: 4,
                keys: 2,
                page_size: 64,
                kv_bits: 16,
                split: false,
            }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                self.lanes,
                self.head_dim,
                self.rows,
                self.heads,
                self.keys,
                self.page_size,
                self.kv_bits,
                u32::from(self.split),
            ]
        }
    }

    /// `attention_paged_wide.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "attention_paged_wide.t1",
        spirv: include_bytes!("attention_paged_wide.t1.spv"),
        push_size: 120,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `attention_paged_wide.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(1, &T1)];
}

/// Generated from `src/bias_gelu/bias_gelu.comp`.
pub mod bias_gelu {
    /// Push constants of `bias_gelu.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub x: gpu::Address,
        /// Read by the shader.
        pub bias: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// `uint` in the shader.
        pub n: u32,
        /// `uint` in the shader.
        pub y_stride: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 40;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.x, gpu::Access::Read);
            writer.buffer(8, &self.bias, gpu::Access::Read);
            writer.buffer(16, &self.y, gpu::Access::Write);
            writer.buffer(24, &self.active_rows, gpu::Access::Read);
            writer.word(32, self.n);
            writer.word(36, self.y_stride);
        }
    }

    /// Specialisation constants of `bias_gelu.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `VEC4S_PER_THREAD`: `uint`, constant 1.
        pub vec4s_per_thread: u32,
        /// `OUTPUT`: `uint`, constant 2.
        pub output: u32,
        /// `ERF`: `bool`, constant 3.
        pub erf: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 64, vec4s_per_thread: 1, output: 0, erf: false }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, self.vec4s_per_thread, self.output, u32::from(self.erf)]
        }
    }

    /// `bias_gelu.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "bias_gelu.t0",
        spirv: include_bytes!("bias_gelu.t0.spv"),
        push_size: 40,
        constant_ids: &[0, 1, 2, 3],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `bias_gelu.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/clip/clip.comp`.
pub mod clip {
    /// Push constants of `clip.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub x: gpu::Address,
        /// Read by the shader.
        pub ranges: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// `uint` in the shader.
        pub n: u32,
        /// `uint` in the shader.
        pub x_stride: u32,
        /// `uint` in the shader.
        pub y_stride: u32,
        /// `uint` in the shader.
        pub y_first: u32,
        /// `float` in the shader.
        pub gate_low: f32,
        /// `float` in the shader.
        pub gate_high: f32,
        /// `float` in the shader.
        pub up_low: f32,
        /// `float` in the shader.
        pub up_high: f32,
        /// `float` in the shader.
        pub low: f32,
        /// `float` in the shader.
        pub high: f32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 72;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.x, gpu::Access::Read);
            writer.buffer(8, &self.ranges, gpu::Access::Read);
            writer.buffer(16, &self.y, gpu::Access::Write);
            writer.buffer(24, &self.active_rows, gpu::Access::Read);
            writer.word(32, self.n);
            writer.word(36, self.x_stride);
            writer.word(40, self.y_stride);
            writer.word(44, self.y_first);
            writer.word(48, self.gate_low.to_bits());
            writer.word(52, self.gate_high.to_bits());
            writer.word(56, self.up_low.to_bits());
            writer.word(60, self.up_high.to_bits());
            writer.word(64, self.low.to_bits());
            writer.word(68, self.high.to_bits());
        }
    }

    /// Specialisation constants of `clip.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `VEC4S_PER_THREAD`: `uint`, constant 1.
        pub vec4s_per_thread: u32,
        /// `OUTPUT`: `uint`, constant 2.
        pub output: u32,
        /// `GATED`: `bool`, constant 3.
        pub gated: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 64, vec4s_per_thread: 1, output: 0, gated: false }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, self.vec4s_per_thread, self.output, u32::from(self.gated)]
        }
    }

    /// `clip.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "clip.t0",
        spirv: include_bytes!("clip.t0.spv"),
        push_size: 72,
        constant_ids: &[0, 1, 2, 3],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `clip.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/experts/combine/combine.comp`.
pub mod combine {
    /// Push constants of `combine.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub dense: gpu::Address,
        /// Read by the shader.
        pub experts: gpu::Address,
        /// Read by the shader.
        pub expert_weights: gpu::Address,
        /// Read by the shader.
        pub dense_weight: gpu::Address,
        /// Read by the shader.
        pub experts_weight: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// `uint` in the shader.
        pub n: u32,
        /// `float` in the shader.
        pub epsilon: f32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 64;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.dense, gpu::Access::Read);
            writer.buffer(8, &self.experts, gpu::Access::Read);
            writer.buffer(16, &self.expert_weights, gpu::Access::Read);
            writer.buffer(24, &self.dense_weight, gpu::Access::Read);
            writer.buffer(32, &self.experts_weight, gpu::Access::Read);
            writer.buffer(40, &self.y, gpu::Access::Write);
            writer.buffer(48, &self.active_rows, gpu::Access::Read);
            writer.word(56, self.n);
            writer.word(60, self.epsilon.to_bits());
        }
    }

    /// Specialisation constants of `combine.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `VALUES_PER_THREAD`: `uint`, constant 1.
        pub values_per_thread: u32,
        /// `DENSE_PARTIALS`: `uint`, constant 2.
        pub dense_partials: u32,
        /// `EXPERT_PARTIALS`: `uint`, constant 3.
        pub expert_partials: u32,
        /// `WEIGHTED`: `bool`, constant 4.
        pub weighted: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 256, values_per_thread: 1, dense_partials: 1, expert_partials: 1, weighted: true }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                self.values_per_thread,
                self.dense_partials,
                self.expert_partials,
                u32::from(self.weighted),
            ]
        }
    }

    /// `combine.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "combine.t0",
        spirv: include_bytes!("combine.t0.spv"),
        push_size: 64,
        constant_ids: &[0, 1, 2, 3, 4],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `combine.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "combine.t1",
        spirv: include_bytes!("combine.t1.spv"),
        push_size: 64,
        constant_ids: &[0, 1, 2, 3, 4],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `combine.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/matmul/coopmat/coopmat_direct.comp`.
pub mod coopmat_direct {
    /// Push constants of `coopmat_direct.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub values: gpu::Address,
        /// Read by the shader.
        pub scales: gpu::Address,
        /// Read by the shader.
        pub x: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// Read and written by the shader.
        pub partials: gpu::Address,
        /// Read and written by the shader.
        pub counters: gpu::Address,
        /// `uint` in the shader.
        pub rows: u32,
        /// `uint` in the shader.
        pub k: u32,
        /// `uint` in the shader.
        pub columns: u32,
        /// `uint` in the shader.
        pub y_first: u32,
        /// `uint` in the shader.
        pub y_stride: u32,
        /// `uint` in the shader.
        pub y_partial_stride: u32,
        /// `uint` in the shader.
        pub unsplit: u32,
        /// Read by the shader.
        pub group_experts: gpu::Address,
        /// Read by the shader.
        pub group_pairs: gpu::Address,
        /// Read by the shader.
        pub bias: gpu::Address,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 112;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.values, gpu::Access::Read);
            writer.buffer(8, &self.scales, gpu::Access::Read);
            writer.buffer(16, &self.x, gpu::Access::Read);
            writer.buffer(24, &self.active_rows, gpu::Access::Read);
            writer.buffer(32, &self.y, gpu::Access::Write);
            writer.buffer(40, &self.partials, gpu::Access::ReadWrite);
            writer.buffer(48, &self.counters, gpu::Access::ReadWrite);
            writer.word(56, self.rows);
            writer.word(60, self.k);
            writer.word(64, self.columns);
            writer.word(68, self.y_first);
            writer.word(72, self.y_stride);
            writer.word(76, self.y_partial_stride);
            writer.word(80, self.unsplit);
            writer.buffer(88, &self.group_experts, gpu::Access::Read);
            writer.buffer(96, &self.group_pairs, gpu::Access::Read);
            writer.buffer(104, &self.bias, gpu::Access::Read);
        }
    }

    /// Specialisation constants of `coopmat_direct.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `SCHEME`: `uint`, constant 1.
        pub scheme: u32,
        /// `EPILOGUE`: `uint`, constant 2.
        pub epilogue: u32,
        /// `F16_OUTPUT`: `bool`, constant 3.
        pub f16_output: bool,
        /// `ROWS`: `uint`, constant 4.
        pub rows: u32,
        /// `COLUMNS`: `uint`, constant 5.
        pub columns: u32,
        /// `SUBGROUP_ROWS`: `uint`, constant 6.
        pub subgroup_rows: u32,
        /// `SUBGROUP_COLUMNS`: `uint`, constant 7.
        pub subgroup_columns: u32,
        /// `PREFETCH_DEPTH`: `uint`, constant 8.
        pub prefetch_depth: u32,
        /// `SPLITS`: `uint`, constant 9.
        pub splits: u32,
        /// `LANES`: `uint`, constant 10.
        pub lanes: u32,
        /// `PARTIAL_OUTPUT`: `bool`, constant 11.
        pub partial_output: bool,
        /// `PAIRS_PER_X`: `uint`, constant 13.
        pub pairs_per_x: u32,
        /// `BIAS`: `uint`, constant 14.
        pub bias: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self {
                threads: 128,
                scheme: 0,
                epilogue: 0,
                f16_output: false,
                rows: 128,
                columns: 128,
                subgroup_rows: 64,
                subgroup_columns: 64,
                prefetch_depth: 1,
                splits: 1,
                lanes: 32,
                partial_output: false,
                pairs_per_x: 0,
                bias: 0,
            }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                self.scheme,
                self.epilogue,
                u32::from(self.f16_output),
                self.rows,
                self.columns,
                self.subgroup_rows,
                self.subgroup_columns,
                self.prefetch_depth,
                self.splits,
                self.lanes,
                u32::from(self.partial_output),
                self.pairs_per_x,
                self.bias,
            ]
        }
    }

    /// `coopmat_direct.comp` at tier T2.
    pub static T2: gpu::Shader = gpu::Shader {
        name: "coopmat_direct.t2",
        spirv: include_bytes!("coopmat_direct.t2.spv"),
        push_size: 112,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `coopmat_direct.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(2, &T2)];
}

/// Generated from `src/matmul/coopmat/coopmat_fragments.comp`.
pub mod coopmat_fragments {
    /// Push constants of `coopmat_fragments.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Written by the shader.
        pub indices: gpu::Address,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 8;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.indices, gpu::Access::Write);
        }
    }

    /// `coopmat_fragments.comp` has no specialisation constants.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub struct Constants;

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            Vec::new()
        }
    }

    /// `coopmat_fragments.comp` at tier T2.
    pub static T2: gpu::Shader = gpu::Shader {
        name: "coopmat_fragments.t2",
        spirv: include_bytes!("coopmat_fragments.t2.spv"),
        push_size: 8,
        constant_ids: &[],
        local_size: [gpu::LocalSize::Fixed(32), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `coopmat_fragments.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(2, &T2)];
}

/// Generated from `src/matmul/coopmat/coopmat_staged.comp`.
pub mod coopmat_staged {
    /// Push constants of `coopmat_staged.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub values: gpu::Address,
        /// Read by the shader.
        pub scales: gpu::Address,
        /// Read by the shader.
        pub x: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// Read and written by the shader.
        pub partials: gpu::Address,
        /// Read and written by the shader.
        pub counters: gpu::Address,
        /// `uint` in the shader.
        pub rows: u32,
        /// `uint` in the shader.
        pub k: u32,
        /// `uint` in the shader.
        pub columns: u32,
        /// `uint` in the shader.
        pub y_first: u32,
        /// `uint` in the shader.
        pub y_stride: u32,
        /// `uint` in the shader.
        pub y_partial_stride: u32,
        /// `uint` in the shader.
        pub unsplit: u32,
        /// Read by the shader.
        pub group_experts: gpu::Address,
        /// Read by the shader.
        pub group_pairs: gpu::Address,
        /// Read by the shader.
        pub bias: gpu::Address,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 112;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.values, gpu::Access::Read);
            writer.buffer(8, &self.scales, gpu::Access::Read);
            writer.buffer(16, &self.x, gpu::Access::Read);
            writer.buffer(24, &self.active_rows, gpu::Access::Read);
            writer.buffer(32, &self.y, gpu::Access::Write);
            writer.buffer(40, &self.partials, gpu::Access::ReadWrite);
            writer.buffer(48, &self.counters, gpu::Access::ReadWrite);
            writer.word(56, self.rows);
            writer.word(60, self.k);
            writer.word(64, self.columns);
            writer.word(68, self.y_first);
            writer.word(72, self.y_stride);
            writer.word(76, self.y_partial_stride);
            writer.word(80, self.unsplit);
            writer.buffer(88, &self.group_experts, gpu::Access::Read);
            writer.buffer(96, &self.group_pairs, gpu::Access::Read);
            writer.buffer(104, &self.bias, gpu::Access::Read);
        }
    }

    /// Specialisation constants of `coopmat_staged.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `SCHEME`: `uint`, constant 1.
        pub scheme: u32,
        /// `EPILOGUE`: `uint`, constant 2.
        pub epilogue: u32,
        /// `F16_OUTPUT`: `bool`, constant 3.
        pub f16_output: bool,
        /// `ROWS`: `uint`, constant 4.
        pub rows: u32,
        /// `COLUMNS`: `uint`, constant 5.
        pub columns: u32,
        /// `SUBGROUP_ROWS`: `uint`, constant 6.
        pub subgroup_rows: u32,
        /// `SUBGROUP_COLUMNS`: `uint`, constant 7.
        pub subgroup_columns: u32,
        /// `PREFETCH_DEPTH`: `uint`, constant 8.
        pub prefetch_depth: u32,
        /// `SPLITS`: `uint`, constant 9.
        pub splits: u32,
        /// `LANES`: `uint`, constant 10.
        pub lanes: u32,
        /// `PARTIAL_OUTPUT`: `bool`, constant 11.
        pub partial_output: bool,
        /// `PAIRS_PER_X`: `uint`, constant 13.
        pub pairs_per_x: u32,
        /// `BIAS`: `uint`, constant 14.
        pub bias: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self {
                threads: 128,
                scheme: 0,
                epilogue: 0,
                f16_output: false,
                rows: 128,
                columns: 128,
                subgroup_rows: 64,
                subgroup_columns: 64,
                prefetch_depth: 1,
                splits: 1,
                lanes: 32,
                partial_output: false,
                pairs_per_x: 0,
                bias: 0,
            }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                self.scheme,
                self.epilogue,
                u32::from(self.f16_output),
                self.rows,
                self.columns,
                self.subgroup_rows,
                self.subgroup_columns,
                self.prefetch_depth,
                self.splits,
                self.lanes,
                u32::from(self.partial_output),
                self.pairs_per_x,
                self.bias,
            ]
        }
    }

    /// `coopmat_staged.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "coopmat_staged.t1",
        spirv: include_bytes!("coopmat_staged.t1.spv"),
        push_size: 112,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `coopmat_staged.comp` at tier T2.
    pub static T2: gpu::Shader = gpu::Shader {
        name: "coopmat_staged.t2",
        spirv: include_bytes!("coopmat_staged.t2.spv"),
        push_size: 112,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `coopmat_staged.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(1, &T1), (2, &T2)];
}

/// Generated from `src/embed/embed.comp`.
pub mod embed {
    /// Push constants of `embed.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub values: gpu::Address,
        /// Read by the shader.
        pub scales: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Read by the shader.
        pub tokens: gpu::Address,
        /// Written by the shader.
        pub residual: gpu::Address,
        /// `uint` in the shader.
        pub hidden: u32,
        /// `uint` in the shader.
        pub block_first_row: u32,
        /// `uint` in the shader.
        pub block_rows: u32,
        /// `float` in the shader.
        pub factor: f32,
        /// `uint` in the shader.
        pub soft_token: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 60;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.values, gpu::Access::Read);
            writer.buffer(8, &self.scales, gpu::Access::Read);
            writer.buffer(16, &self.active_rows, gpu::Access::Read);
            writer.buffer(24, &self.tokens, gpu::Access::Read);
            writer.buffer(32, &self.residual, gpu::Access::Write);
            writer.word(40, self.hidden);
            writer.word(44, self.block_first_row);
            writer.word(48, self.block_rows);
            writer.word(52, self.factor.to_bits());
            writer.word(56, self.soft_token);
        }
    }

    /// Specialisation constants of `embed.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `SCHEME`: `uint`, constant 1.
        pub scheme: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 64, scheme: 0 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, self.scheme]
        }
    }

    /// `embed.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "embed.t0",
        spirv: include_bytes!("embed.t0.spv"),
        push_size: 60,
        constant_ids: &[0, 1],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `embed.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/matmul/gated/gated.comp`.
pub mod gated {
    /// Push constants of `gated.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub gate: gpu::Address,
        /// Read by the shader.
        pub up: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// `uint` in the shader.
        pub n: u32,
        /// `uint` in the shader.
        pub y_stride: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 40;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.gate, gpu::Access::Read);
            writer.buffer(8, &self.up, gpu::Access::Read);
            writer.buffer(16, &self.y, gpu::Access::Write);
            writer.buffer(24, &self.active_rows, gpu::Access::Read);
            writer.word(32, self.n);
            writer.word(36, self.y_stride);
        }
    }

    /// Specialisation constants of `gated.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `EPILOGUE`: `uint`, constant 1.
        pub epilogue: u32,
        /// `OUTPUT`: `uint`, constant 2.
        pub output: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 256, epilogue: 1, output: 0 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, self.epilogue, self.output]
        }
    }

    /// `gated.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "gated.t0",
        spirv: include_bytes!("gated.t0.spv"),
        push_size: 40,
        constant_ids: &[0, 1, 2],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `gated.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/matmul/gemm/gemm.comp`.
pub mod gemm {
    /// Push constants of `gemm.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub values: gpu::Address,
        /// Read by the shader.
        pub scales: gpu::Address,
        /// Read by the shader.
        pub x: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// `uint` in the shader.
        pub rows: u32,
        /// `uint` in the shader.
        pub k: u32,
        /// `uint` in the shader.
        pub columns: u32,
        /// `uint` in the shader.
        pub y_first: u32,
        /// `uint` in the shader.
        pub y_stride: u32,
        /// Read by the shader.
        pub group_experts: gpu::Address,
        /// Read by the shader.
        pub group_pairs: gpu::Address,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 80;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.values, gpu::Access::Read);
            writer.buffer(8, &self.scales, gpu::Access::Read);
            writer.buffer(16, &self.x, gpu::Access::Read);
            writer.buffer(24, &self.active_rows, gpu::Access::Read);
            writer.buffer(32, &self.y, gpu::Access::Write);
            writer.word(40, self.rows);
            writer.word(44, self.k);
            writer.word(48, self.columns);
            writer.word(52, self.y_first);
            writer.word(56, self.y_stride);
            writer.buffer(64, &self.group_experts, gpu::Access::Read);
            writer.buffer(72, &self.group_pairs, gpu::Access::Read);
        }
    }

    /// Specialisation constants of `gemm.comp`.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub struct Constants {
        /// `SCHEME`: `uint`, constant 0.
        pub scheme: u32,
        /// `EPILOGUE`: `uint`, constant 1.
        pub epilogue: u32,
        /// `PAIRS_PER_X`: `uint`, constant 2.
        pub pairs_per_x: u32,
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.scheme, self.epilogue, self.pairs_per_x]
        }
    }

    /// `gemm.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "gemm.t0",
        spirv: include_bytes!("gemm.t0.spv"),
        push_size: 80,
        constant_ids: &[0, 1, 2],
        local_size: [gpu::LocalSize::Fixed(128), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `gemm.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "gemm.t1",
        spirv: include_bytes!("gemm.t1.spv"),
        push_size: 80,
        constant_ids: &[0, 1, 2],
        local_size: [gpu::LocalSize::Fixed(128), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `gemm.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/matmul/gemm/gemm_lanes.comp`.
pub mod gemm_lanes {
    /// Push constants of `gemm_lanes.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub values: gpu::Address,
        /// Read by the shader.
        pub scales: gpu::Address,
        /// Read by the shader.
        pub x: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// `uint` in the shader.
        pub rows: u32,
        /// `uint` in the shader.
        pub k: u32,
        /// `uint` in the shader.
        pub columns: u32,
        /// `uint` in the shader.
        pub y_first: u32,
        /// `uint` in the shader.
        pub y_stride: u32,
        /// Read by the shader.
        pub group_experts: gpu::Address,
        /// Read by the shader.
        pub group_pairs: gpu::Address,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 80;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.values, gpu::Access::Read);
            writer.buffer(8, &self.scales, gpu::Access::Read);
            writer.buffer(16, &self.x, gpu::Access::Read);
            writer.buffer(24, &self.active_rows, gpu::Access::Read);
            writer.buffer(32, &self.y, gpu::Access::Write);
            writer.word(40, self.rows);
            writer.word(44, self.k);
            writer.word(48, self.columns);
            writer.word(52, self.y_first);
            writer.word(56, self.y_stride);
            writer.buffer(64, &self.group_experts, gpu::Access::Read);
            writer.buffer(72, &self.group_pairs, gpu::Access::Read);
        }
    }

    /// Specialisation constants of `gemm_lanes.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `SCHEME`: `uint`, constant 0.
        pub scheme: u32,
        /// `EPILOGUE`: `uint`, constant 1.
        pub epilogue: u32,
        /// `COLUMNS`: `uint`, constant 2.
        pub columns: u32,
        /// `STRIPS`: `uint`, constant 3.
        pub strips: u32,
        /// `HAS_ACTIVE`: `bool`, constant 4.
        pub has_active: bool,
        /// `PAIRS_PER_X`: `uint`, constant 5.
        pub pairs_per_x: u32,
        /// `LANES`: `uint`, constant 6.
        pub lanes: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self {
                scheme: 0,
                epilogue: 0,
                columns: 1,
                strips: 1,
                has_active: false,
                pairs_per_x: 0,
                lanes: 8,
            }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.scheme,
                self.epilogue,
                self.columns,
                self.strips,
                u32::from(self.has_active),
                self.pairs_per_x,
                self.lanes,
            ]
        }
    }

    /// `gemm_lanes.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "gemm_lanes.t1",
        spirv: include_bytes!("gemm_lanes.t1.spv"),
        push_size: 80,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6],
        local_size: [gpu::LocalSize::Constant(6), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `gemm_lanes.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(1, &T1)];
}

/// Generated from `src/matmul/gemm/gemm_packed.comp`.
pub mod gemm_packed {
    /// Push constants of `gemm_packed.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub values: gpu::Address,
        /// Read by the shader.
        pub scales: gpu::Address,
        /// Read by the shader.
        pub x: gpu::Address,
        /// Read by the shader.
        pub x_scales: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// Written by the shader.
        pub y_scales: gpu::Address,
        /// `uint` in the shader.
        pub rows: u32,
        /// `uint` in the shader.
        pub k: u32,
        /// `uint` in the shader.
        pub columns: u32,
        /// `uint` in the shader.
        pub y_first: u32,
        /// `uint` in the shader.
        pub y_stride: u32,
        /// `uint` in the shader.
        pub y_low: u32,
        /// Read by the shader.
        pub group_experts: gpu::Address,
        /// Read by the shader.
        pub group_pairs: gpu::Address,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 96;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.values, gpu::Access::Read);
            writer.buffer(8, &self.scales, gpu::Access::Read);
            writer.buffer(16, &self.x, gpu::Access::Read);
            writer.buffer(24, &self.x_scales, gpu::Access::Read);
            writer.buffer(32, &self.active_rows, gpu::Access::Read);
            writer.buffer(40, &self.y, gpu::Access::Write);
            writer.buffer(48, &self.y_scales, gpu::Access::Write);
            writer.word(56, self.rows);
            writer.word(60, self.k);
            writer.word(64, self.columns);
            writer.word(68, self.y_first);
            writer.word(72, self.y_stride);
            writer.word(76, self.y_low);
            writer.buffer(80, &self.group_experts, gpu::Access::Read);
            writer.buffer(88, &self.group_pairs, gpu::Access::Read);
        }
    }

    /// Specialisation constants of `gemm_packed.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `SCHEME`: `uint`, constant 1.
        pub scheme: u32,
        /// `EPILOGUE`: `uint`, constant 2.
        pub epilogue: u32,
        /// `INT16_OUTPUT`: `bool`, constant 3.
        pub int16_output: bool,
        /// `THREAD_ROWS`: `uint`, constant 4.
        pub thread_rows: u32,
        /// `THREAD_COLUMNS`: `uint`, constant 5.
        pub thread_columns: u32,
        /// `PAIRS_PER_X`: `uint`, constant 6.
        pub pairs_per_x: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self {
                threads: 128,
                scheme: 0,
                epilogue: 0,
                int16_output: false,
                thread_rows: 8,
                thread_columns: 4,
                pairs_per_x: 0,
            }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                self.scheme,
                self.epilogue,
                u32::from(self.int16_output),
                self.thread_rows,
                self.thread_columns,
                self.pairs_per_x,
            ]
        }
    }

    /// `gemm_packed.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "gemm_packed.t1",
        spirv: include_bytes!("gemm_packed.t1.spv"),
        push_size: 96,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `gemm_packed.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(1, &T1)];
}

/// Generated from `src/matmul/gemv/gemv.comp`.
pub mod gemv {
    /// Push constants of `gemv.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub values: gpu::Address,
        /// Read by the shader.
        pub scales: gpu::Address,
        /// Read by the shader.
        pub x: gpu::Address,
        /// Read by the shader.
        pub x_scales: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// Written by the shader.
        pub y_scales: gpu::Address,
        /// Read by the shader.
        pub residual: gpu::Address,
        /// Read by the shader.
        pub sublayer: gpu::Address,
        /// Read by the shader.
        pub post_weight: gpu::Address,
        /// Read by the shader.
        pub weight: gpu::Address,
        /// Written by the shader.
        pub stream: gpu::Address,
        /// `uint` in the shader.
        pub rows: u32,
        /// `uint` in the shader.
        pub k: u32,
        /// `uint` in the shader.
        pub y_first: u32,
        /// `uint` in the shader.
        pub y_stride: u32,
        /// `uint` in the shader.
        pub y_low: u32,
        /// `float` in the shader.
        pub epsilon: f32,
        /// `uint` in the shader.
        pub writes_stream: u32,
        /// `uint` in the shader.
        pub x_columns: u32,
        /// Read by the shader.
        pub experts: gpu::Address,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 128;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.values, gpu::Access::Read);
            writer.buffer(8, &self.scales, gpu::Access::Read);
            writer.buffer(16, &self.x, gpu::Access::Read);
            writer.buffer(24, &self.x_scales, gpu::Access::Read);
            writer.buffer(32, &self.y, gpu::Access::Write);
            writer.buffer(40, &self.y_scales, gpu::Access::Write);
            writer.buffer(48, &self.residual, gpu::Access::Read);
            writer.buffer(56, &self.sublayer, gpu::Access::Read);
            writer.buffer(64, &self.post_weight, gpu::Access::Read);
            writer.buffer(72, &self.weight, gpu::Access::Read);
            writer.buffer(80, &self.stream, gpu::Access::Write);
            writer.word(88, self.rows);
            writer.word(92, self.k);
            writer.word(96, self.y_first);
            writer.word(100, self.y_stride);
            writer.word(104, self.y_low);
            writer.word(108, self.epsilon.to_bits());
            writer.word(112, self.writes_stream);
            writer.word(116, self.x_columns);
            writer.buffer(120, &self.experts, gpu::Access::Read);
        }
    }

    /// Specialisation constants of `gemv.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `COLUMNS`: `uint`, constant 1.
        pub columns: u32,
        /// `SCHEME`: `uint`, constant 2.
        pub scheme: u32,
        /// `ACTIVATIONS`: `uint`, constant 3.
        pub activations: u32,
        /// `IN_FLIGHT`: `uint`, constant 4.
        pub in_flight: u32,
        /// `EPILOGUE`: `uint`, constant 5.
        pub epilogue: u32,
        /// `INT16_OUTPUT`: `bool`, constant 6.
        pub int16_output: bool,
        /// `STRIPS`: `uint`, constant 7.
        pub strips: u32,
        /// `SHARED_X_QUADS`: `uint`, constant 8.
        pub shared_x_quads: u32,
        /// `PROLOGUE`: `uint`, constant 9.
        pub prologue: u32,
        /// `SPLITS`: `uint`, constant 10.
        pub splits: u32,
        /// `SUBLAYER_PARTIALS`: `uint`, constant 11.
        pub sublayer_partials: u32,
        /// `TEAMS`: `uint`, constant 12.
        pub teams: u32,
        /// `WIDE_SUBGROUPS`: `bool`, constant 13.
        pub wide_subgroups: bool,
        /// `PAIRS_PER_X`: `uint`, constant 14.
        pub pairs_per_x: u32,
        /// `RESIDUAL_SCALED`: `bool`, constant 15.
        pub residual_scaled: bool,
        /// `PAIRS_PER_Y`: `uint`, constant 16.
        pub pairs_per_y: u32,
        /// `SPLIT_QUADS`: `uint`, constant 17.
        pub split_quads: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self {
                threads: 256,
                columns: 1,
                scheme: 0,
                activations: 1,
                in_flight: 1,
                epilogue: 0,
                int16_output: false,
                strips: 1,
                shared_x_quads: 0,
                prologue: 0,
                splits: 1,
                sublayer_partials: 1,
                teams: 1,
                wide_subgroups: false,
                pairs_per_x: 0,
                residual_scaled: false,
                pairs_per_y: 0,
                split_quads: 0,
            }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                self.columns,
                self.scheme,
                self.activations,
                self.in_flight,
                self.epilogue,
                u32::from(self.int16_output),
                self.strips,
                self.shared_x_quads,
                self.prologue,
                self.splits,
                self.sublayer_partials,
                self.teams,
                u32::from(self.wide_subgroups),
                self.pairs_per_x,
                u32::from(self.residual_scaled),
                self.pairs_per_y,
                self.split_quads,
            ]
        }
    }

    /// `gemv.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "gemv.t0",
        spirv: include_bytes!("gemv.t0.spv"),
        push_size: 128,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `gemv.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "gemv.t1",
        spirv: include_bytes!("gemv.t1.spv"),
        push_size: 128,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `gemv.comp` at tier T2.
    pub static T2: gpu::Shader = gpu::Shader {
        name: "gemv.t2",
        spirv: include_bytes!("gemv.t2.spv"),
        push_size: 128,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `gemv.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1), (2, &T2)];
}

/// Generated from `src/matmul/gemv_norm/gemv_norm.comp`.
pub mod gemv_norm {
    /// Push constants of `gemv_norm.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Written by the shader.
        pub y: gpu::Address,
        /// Written by the shader.
        pub y_scales: gpu::Address,
        /// Written by the shader.
        pub factors: gpu::Address,
        /// Read by the shader.
        pub residual: gpu::Address,
        /// Read by the shader.
        pub sublayer: gpu::Address,
        /// Read by the shader.
        pub post_weight: gpu::Address,
        /// Read by the shader.
        pub weight: gpu::Address,
        /// Written by the shader.
        pub stream: gpu::Address,
        /// Read by the shader.
        pub experts: gpu::Address,
        /// `uint` in the shader.
        pub k: u32,
        /// `float` in the shader.
        pub epsilon: f32,
        /// `uint` in the shader.
        pub writes_stream: u32,
        /// `uint` in the shader.
        pub rows: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 88;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.y, gpu::Access::Write);
            writer.buffer(8, &self.y_scales, gpu::Access::Write);
            writer.buffer(16, &self.factors, gpu::Access::Write);
            writer.buffer(24, &self.residual, gpu::Access::Read);
            writer.buffer(32, &self.sublayer, gpu::Access::Read);
            writer.buffer(40, &self.post_weight, gpu::Access::Read);
            writer.buffer(48, &self.weight, gpu::Access::Read);
            writer.buffer(56, &self.stream, gpu::Access::Write);
            writer.buffer(64, &self.experts, gpu::Access::Read);
            writer.word(72, self.k);
            writer.word(76, self.epsilon.to_bits());
            writer.word(80, self.writes_stream);
            writer.word(84, self.rows);
        }
    }

    /// Specialisation constants of `gemv_norm.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `SHARED_X_QUADS`: `uint`, constant 1.
        pub shared_x_quads: u32,
        /// `PROLOGUE`: `uint`, constant 2.
        pub prologue: u32,
        /// `SUBLAYER_PARTIALS`: `uint`, constant 3.
        pub sublayer_partials: u32,
        /// `WIDE_SUBGROUPS`: `bool`, constant 4.
        pub wide_subgroups: bool,
        /// `RESIDUAL_SCALED`: `bool`, constant 5.
        pub residual_scaled: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self {
                threads: 256,
                shared_x_quads: 1,
                prologue: 1,
                sublayer_partials: 1,
                wide_subgroups: false,
                residual_scaled: false,
            }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                self.shared_x_quads,
                self.prologue,
                self.sublayer_partials,
                u32::from(self.wide_subgroups),
                u32::from(self.residual_scaled),
            ]
        }
    }

    /// `gemv_norm.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "gemv_norm.t1",
        spirv: include_bytes!("gemv_norm.t1.spv"),
        push_size: 88,
        constant_ids: &[0, 1, 2, 3, 4, 5],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `gemv_norm.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(1, &T1)];
}

/// Generated from `src/grid_positions/grid_positions.comp`.
pub mod grid_positions {
    /// Push constants of `grid_positions.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub column_table: gpu::Address,
        /// Read by the shader.
        pub row_table: gpu::Address,
        /// Read by the shader.
        pub positions: gpu::Address,
        /// Written by the shader.
        pub residual: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// `uint` in the shader.
        pub n: u32,
        /// `uint` in the shader.
        pub columns: u32,
        /// `uint` in the shader.
        pub rows: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 52;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.column_table, gpu::Access::Read);
            writer.buffer(8, &self.row_table, gpu::Access::Read);
            writer.buffer(16, &self.positions, gpu::Access::Read);
            writer.buffer(24, &self.residual, gpu::Access::Write);
            writer.buffer(32, &self.active_rows, gpu::Access::Read);
            writer.word(40, self.n);
            writer.word(44, self.columns);
            writer.word(48, self.rows);
        }
    }

    /// Specialisation constants of `grid_positions.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 64 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads]
        }
    }

    /// `grid_positions.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "grid_positions.t0",
        spirv: include_bytes!("grid_positions.t0.spv"),
        push_size: 52,
        constant_ids: &[0],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `grid_positions.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/experts/group/group.comp`.
pub mod group {
    /// Push constants of `group.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub selected: gpu::Address,
        /// Written by the shader.
        pub group_experts: gpu::Address,
        /// Written by the shader.
        pub group_pairs: gpu::Address,
        /// `uint` in the shader.
        pub pairs: u32,
        /// `uint` in the shader.
        pub experts: u32,
        /// `uint` in the shader.
        pub groups: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 36;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.selected, gpu::Access::Read);
            writer.buffer(8, &self.group_experts, gpu::Access::Write);
            writer.buffer(16, &self.group_pairs, gpu::Access::Write);
            writer.word(24, self.pairs);
            writer.word(28, self.experts);
            writer.word(32, self.groups);
        }
    }

    /// Specialisation constants of `group.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `WIDTH`: `uint`, constant 1.
        pub width: u32,
        /// `MAX_EXPERTS`: `uint`, constant 2.
        pub max_experts: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 256, width: 16, max_experts: 512 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, self.width, self.max_experts]
        }
    }

    /// `group.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "group.t0",
        spirv: include_bytes!("group.t0.spv"),
        push_size: 36,
        constant_ids: &[0, 1, 2],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `group.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/layer_norm/layer_norm.comp`.
pub mod layer_norm {
    /// Push constants of `layer_norm.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub x: gpu::Address,
        /// Read by the shader.
        pub x_bias: gpu::Address,
        /// Read and written by the shader.
        pub residual: gpu::Address,
        /// Read by the shader.
        pub weight: gpu::Address,
        /// Read by the shader.
        pub bias: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// `uint` in the shader.
        pub n: u32,
        /// `uint` in the shader.
        pub x_stride: u32,
        /// `uint` in the shader.
        pub y_stride: u32,
        /// `float` in the shader.
        pub epsilon: f32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 72;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.x, gpu::Access::Read);
            writer.buffer(8, &self.x_bias, gpu::Access::Read);
            writer.buffer(16, &self.residual, gpu::Access::ReadWrite);
            writer.buffer(24, &self.weight, gpu::Access::Read);
            writer.buffer(32, &self.bias, gpu::Access::Read);
            writer.buffer(40, &self.y, gpu::Access::Write);
            writer.buffer(48, &self.active_rows, gpu::Access::Read);
            writer.word(56, self.n);
            writer.word(60, self.x_stride);
            writer.word(64, self.y_stride);
            writer.word(68, self.epsilon.to_bits());
        }
    }

    /// Specialisation constants of `layer_norm.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `VEC4S_PER_THREAD`: `uint`, constant 1.
        pub vec4s_per_thread: u32,
        /// `ADD`: `bool`, constant 2.
        pub add: bool,
        /// `OUTPUT`: `uint`, constant 3.
        pub output: u32,
        /// `NORMED_RESIDUAL`: `bool`, constant 4.
        pub normed_residual: bool,
        /// `X_F16`: `bool`, constant 5.
        pub x_f16: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self {
                threads: 64,
                vec4s_per_thread: 1,
                add: false,
                output: 0,
                normed_residual: false,
                x_f16: false,
            }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                self.vec4s_per_thread,
                u32::from(self.add),
                self.output,
                u32::from(self.normed_residual),
                u32::from(self.x_f16),
            ]
        }
    }

    /// `layer_norm.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "layer_norm.t0",
        spirv: include_bytes!("layer_norm.t0.spv"),
        push_size: 72,
        constant_ids: &[0, 1, 2, 3, 4, 5],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `layer_norm.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "layer_norm.t1",
        spirv: include_bytes!("layer_norm.t1.spv"),
        push_size: 72,
        constant_ids: &[0, 1, 2, 3, 4, 5],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `layer_norm.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/norm/norm.comp`.
pub mod norm {
    /// Push constants of `norm.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub x: gpu::Address,
        /// Read by the shader.
        pub post_weight: gpu::Address,
        /// Read and written by the shader.
        pub residual: gpu::Address,
        /// Read by the shader.
        pub weight: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// Written by the shader.
        pub y_bytes: gpu::Address,
        /// Written by the shader.
        pub y_scales: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Read by the shader.
        pub rows: gpu::Address,
        /// `uint` in the shader.
        pub n: u32,
        /// `float` in the shader.
        pub epsilon: f32,
        /// `uint` in the shader.
        pub plane_words: u32,
        /// Read by the shader.
        pub partial_weights: gpu::Address,
        /// Read by the shader.
        pub residual_scale: gpu::Address,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 104;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.x, gpu::Access::Read);
            writer.buffer(8, &self.post_weight, gpu::Access::Read);
            writer.buffer(16, &self.residual, gpu::Access::ReadWrite);
            writer.buffer(24, &self.weight, gpu::Access::Read);
            writer.buffer(32, &self.y, gpu::Access::Write);
            writer.buffer(40, &self.y_bytes, gpu::Access::Write);
            writer.buffer(48, &self.y_scales, gpu::Access::Write);
            writer.buffer(56, &self.active_rows, gpu::Access::Read);
            writer.buffer(64, &self.rows, gpu::Access::Read);
            writer.word(72, self.n);
            writer.word(76, self.epsilon.to_bits());
            writer.word(80, self.plane_words);
            writer.buffer(88, &self.partial_weights, gpu::Access::Read);
            writer.buffer(96, &self.residual_scale, gpu::Access::Read);
        }
    }

    /// Specialisation constants of `norm.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `POST_NORM`: `bool`, constant 1.
        pub post_norm: bool,
        /// `RESIDUAL`: `bool`, constant 2.
        pub residual: bool,
        /// `OUTPUT`: `uint`, constant 3.
        pub output: u32,
        /// `GATHER`: `bool`, constant 4.
        pub gather: bool,
        /// `PARTIALS`: `uint`, constant 5.
        pub partials: u32,
        /// `WEIGHTED`: `bool`, constant 6.
        pub weighted: bool,
        /// `SCALED`: `bool`, constant 7.
        pub scaled: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self {
                threads: 256,
                post_norm: false,
                residual: false,
                output: 0,
                gather: false,
                partials: 1,
                weighted: false,
                scaled: false,
            }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                u32::from(self.post_norm),
                u32::from(self.residual),
                self.output,
                u32::from(self.gather),
                self.partials,
                u32::from(self.weighted),
                u32::from(self.scaled),
            ]
        }
    }

    /// `norm.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "norm.t0",
        spirv: include_bytes!("norm.t0.spv"),
        push_size: 104,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `norm.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "norm.t1",
        spirv: include_bytes!("norm.t1.spv"),
        push_size: 104,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `norm.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/norm/norm_registers.comp`.
pub mod norm_registers {
    /// Push constants of `norm_registers.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub x: gpu::Address,
        /// Read by the shader.
        pub post_weight: gpu::Address,
        /// Read and written by the shader.
        pub residual: gpu::Address,
        /// Read by the shader.
        pub weight: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// Written by the shader.
        pub y_bytes: gpu::Address,
        /// Written by the shader.
        pub y_scales: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Read by the shader.
        pub rows: gpu::Address,
        /// `uint` in the shader.
        pub n: u32,
        /// `float` in the shader.
        pub epsilon: f32,
        /// `uint` in the shader.
        pub plane_words: u32,
        /// Read by the shader.
        pub partial_weights: gpu::Address,
        /// Read by the shader.
        pub residual_scale: gpu::Address,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 104;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.x, gpu::Access::Read);
            writer.buffer(8, &self.post_weight, gpu::Access::Read);
            writer.buffer(16, &self.residual, gpu::Access::ReadWrite);
            writer.buffer(24, &self.weight, gpu::Access::Read);
            writer.buffer(32, &self.y, gpu::Access::Write);
            writer.buffer(40, &self.y_bytes, gpu::Access::Write);
            writer.buffer(48, &self.y_scales, gpu::Access::Write);
            writer.buffer(56, &self.active_rows, gpu::Access::Read);
            writer.buffer(64, &self.rows, gpu::Access::Read);
            writer.word(72, self.n);
            writer.word(76, self.epsilon.to_bits());
            writer.word(80, self.plane_words);
            writer.buffer(88, &self.partial_weights, gpu::Access::Read);
            writer.buffer(96, &self.residual_scale, gpu::Access::Read);
        }
    }

    /// Specialisation constants of `norm_registers.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `POST_NORM`: `bool`, constant 1.
        pub post_norm: bool,
        /// `RESIDUAL`: `bool`, constant 2.
        pub residual: bool,
        /// `OUTPUT`: `uint`, constant 3.
        pub output: u32,
        /// `GATHER`: `bool`, constant 4.
        pub gather: bool,
        /// `VEC4S_PER_THREAD`: `uint`, constant 5.
        pub vec4s_per_thread: u32,
        /// `PARTIALS`: `uint`, constant 6.
        pub partials: u32,
        /// `WEIGHTED`: `bool`, constant 7.
        pub weighted: bool,
        /// `SCALED`: `bool`, constant 8.
        pub scaled: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self {
                threads: 256,
                post_norm: false,
                residual: false,
                output: 0,
                gather: false,
                vec4s_per_thread: 1,
                partials: 1,
                weighted: false,
                scaled: false,
            }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                u32::from(self.post_norm),
                u32::from(self.residual),
                self.output,
                u32::from(self.gather),
                self.vec4s_per_thread,
                self.partials,
                u32::from(self.weighted),
                u32::from(self.scaled),
            ]
        }
    }

    /// `norm_registers.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "norm_registers.t0",
        spirv: include_bytes!("norm_registers.t0.spv"),
        push_size: 104,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `norm_registers.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "norm_registers.t1",
        spirv: include_bytes!("norm_registers.t1.spv"),
        push_size: 104,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `norm_registers.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/patch_values/patch_values.comp`.
pub mod patch_values {
    /// Push constants of `patch_values.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub bytes: gpu::Address,
        /// Read by the shader.
        pub table: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// `uint` in the shader.
        pub rows: u32,
        /// `uint` in the shader.
        pub k: u32,
        /// `uint` in the shader.
        pub y_stride: u32,
        /// `uint` in the shader.
        pub run: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 40;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.bytes, gpu::Access::Read);
            writer.buffer(8, &self.table, gpu::Access::Read);
            writer.buffer(16, &self.y, gpu::Access::Write);
            writer.word(24, self.rows);
            writer.word(28, self.k);
            writer.word(32, self.y_stride);
            writer.word(36, self.run);
        }
    }

    /// Specialisation constants of `patch_values.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `OUTPUT`: `uint`, constant 1.
        pub output: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 256, output: 0 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, self.output]
        }
    }

    /// `patch_values.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "patch_values.t0",
        spirv: include_bytes!("patch_values.t0.spv"),
        push_size: 40,
        constant_ids: &[0, 1],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `patch_values.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/per_layer/per_layer_gate.comp`.
pub mod per_layer_gate {
    /// Push constants of `per_layer_gate.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub residual: gpu::Address,
        /// Read by the shader.
        pub gate: gpu::Address,
        /// Read by the shader.
        pub inputs: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// `uint` in the shader.
        pub hidden: u32,
        /// `uint` in the shader.
        pub width: u32,
        /// `uint` in the shader.
        pub y_stride: u32,
        /// `float` in the shader.
        pub epsilon: f32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 56;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.residual, gpu::Access::Read);
            writer.buffer(8, &self.gate, gpu::Access::Read);
            writer.buffer(16, &self.inputs, gpu::Access::Read);
            writer.buffer(24, &self.y, gpu::Access::Write);
            writer.buffer(32, &self.active_rows, gpu::Access::Read);
            writer.word(40, self.hidden);
            writer.word(44, self.width);
            writer.word(48, self.y_stride);
            writer.word(52, self.epsilon.to_bits());
        }
    }

    /// Specialisation constants of `per_layer_gate.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 64 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads]
        }
    }

    /// `per_layer_gate.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "per_layer_gate.t0",
        spirv: include_bytes!("per_layer_gate.t0.spv"),
        push_size: 56,
        constant_ids: &[0],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `per_layer_gate.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "per_layer_gate.t1",
        spirv: include_bytes!("per_layer_gate.t1.spv"),
        push_size: 56,
        constant_ids: &[0],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `per_layer_gate.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/per_layer/per_layer_inputs.comp`.
pub mod per_layer_inputs {
    /// Push constants of `per_layer_inputs.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub embedding: gpu::Address,
        /// Read by the shader.
        pub projected: gpu::Address,
        /// Read by the shader.
        pub token: gpu::Address,
        /// Read by the shader.
        pub weight: gpu::Address,
        /// Written by the shader.
        pub inputs: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// `uint` in the shader.
        pub hidden: u32,
        /// `uint` in the shader.
        pub width: u32,
        /// `uint` in the shader.
        pub layers: u32,
        /// `uint` in the shader.
        pub rows: u32,
        /// `float` in the shader.
        pub epsilon: f32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 68;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.embedding, gpu::Access::Read);
            writer.buffer(8, &self.projected, gpu::Access::Read);
            writer.buffer(16, &self.token, gpu::Access::Read);
            writer.buffer(24, &self.weight, gpu::Access::Read);
            writer.buffer(32, &self.inputs, gpu::Access::Write);
            writer.buffer(40, &self.active_rows, gpu::Access::Read);
            writer.word(48, self.hidden);
            writer.word(52, self.width);
            writer.word(56, self.layers);
            writer.word(60, self.rows);
            writer.word(64, self.epsilon.to_bits());
        }
    }

    /// Specialisation constants of `per_layer_inputs.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 64 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads]
        }
    }

    /// `per_layer_inputs.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "per_layer_inputs.t0",
        spirv: include_bytes!("per_layer_inputs.t0.spv"),
        push_size: 68,
        constant_ids: &[0],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `per_layer_inputs.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "per_layer_inputs.t1",
        spirv: include_bytes!("per_layer_inputs.t1.spv"),
        push_size: 68,
        constant_ids: &[0],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `per_layer_inputs.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/pool/pool.comp`.
pub mod pool {
    /// Push constants of `pool.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub x: gpu::Address,
        /// Read by the shader.
        pub squares: gpu::Address,
        /// Read by the shader.
        pub bias: gpu::Address,
        /// Read by the shader.
        pub scale: gpu::Address,
        /// Read by the shader.
        pub weight: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// `uint` in the shader.
        pub n: u32,
        /// `uint` in the shader.
        pub x_rows: u32,
        /// `uint` in the shader.
        pub x_stride: u32,
        /// `uint` in the shader.
        pub y_stride: u32,
        /// `uint` in the shader.
        pub side: u32,
        /// `float` in the shader.
        pub factor: f32,
        /// `float` in the shader.
        pub epsilon: f32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 84;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.x, gpu::Access::Read);
            writer.buffer(8, &self.squares, gpu::Access::Read);
            writer.buffer(16, &self.bias, gpu::Access::Read);
            writer.buffer(24, &self.scale, gpu::Access::Read);
            writer.buffer(32, &self.weight, gpu::Access::Read);
            writer.buffer(40, &self.y, gpu::Access::Write);
            writer.buffer(48, &self.active_rows, gpu::Access::Read);
            writer.word(56, self.n);
            writer.word(60, self.x_rows);
            writer.word(64, self.x_stride);
            writer.word(68, self.y_stride);
            writer.word(72, self.side);
            writer.word(76, self.factor.to_bits());
            writer.word(80, self.epsilon.to_bits());
        }
    }

    /// Specialisation constants of `pool.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `VEC4S_PER_THREAD`: `uint`, constant 1.
        pub vec4s_per_thread: u32,
        /// `OUTPUT`: `uint`, constant 2.
        pub output: u32,
        /// `STANDARDISE`: `bool`, constant 3.
        pub standardise: bool,
        /// `WEIGHT`: `bool`, constant 4.
        pub weight: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 64, vec4s_per_thread: 1, output: 0, standardise: false, weight: false }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                self.vec4s_per_thread,
                self.output,
                u32::from(self.standardise),
                u32::from(self.weight),
            ]
        }
    }

    /// `pool.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "pool.t0",
        spirv: include_bytes!("pool.t0.spv"),
        push_size: 84,
        constant_ids: &[0, 1, 2, 3, 4],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `pool.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "pool.t1",
        spirv: include_bytes!("pool.t1.spv"),
        push_size: 84,
        constant_ids: &[0, 1, 2, 3, 4],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `pool.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/matmul/prefetch/prefetch.comp`.
pub mod prefetch {
    /// Push constants of `prefetch.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub data: gpu::Address,
        /// Written by the shader.
        pub checksums: gpu::Address,
        /// `uint` in the shader.
        pub groups_per_range: u32,
        /// `uint` in the shader.
        pub stride: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 24;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.data, gpu::Access::Read);
            writer.buffer(8, &self.checksums, gpu::Access::Write);
            writer.word(16, self.groups_per_range);
            writer.word(20, self.stride);
        }
    }

    /// Specialisation constants of `prefetch.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `LOADS`: `uint`, constant 1.
        pub loads: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 256, loads: 4 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, self.loads]
        }
    }

    /// `prefetch.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "prefetch.t0",
        spirv: include_bytes!("prefetch.t0.spv"),
        push_size: 24,
        constant_ids: &[0, 1],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `prefetch.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/bench/probe/probe_read.comp`.
pub mod probe_read {
    /// Push constants of `probe_read.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub source: gpu::Address,
        /// Written by the shader.
        pub result: gpu::Address,
        /// `uint` in the shader.
        pub count: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 20;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.source, gpu::Access::Read);
            writer.buffer(8, &self.result, gpu::Access::Write);
            writer.word(16, self.count);
        }
    }

    /// Specialisation constants of `probe_read.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `IN_FLIGHT`: `uint`, constant 1.
        pub in_flight: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 512, in_flight: 4 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, self.in_flight]
        }
    }

    /// `probe_read.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "probe_read.t0",
        spirv: include_bytes!("probe_read.t0.spv"),
        push_size: 20,
        constant_ids: &[0, 1],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `probe_read.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/bench/probe/probe_touch.comp`.
pub mod probe_touch {
    /// Push constants of `probe_touch.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read and written by the shader.
        pub counter: gpu::Address,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 8;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.counter, gpu::Access::ReadWrite);
        }
    }

    /// Specialisation constants of `probe_touch.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `COUNT`: `bool`, constant 0.
        pub count: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { count: true }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![u32::from(self.count)]
        }
    }

    /// `probe_touch.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "probe_touch.t0",
        spirv: include_bytes!("probe_touch.t0.spv"),
        push_size: 8,
        constant_ids: &[0],
        local_size: [gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `probe_touch.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/matmul/quantize_rows/quantize_rows.comp`.
pub mod quantize_rows {
    /// Push constants of `quantize_rows.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub x: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// Written by the shader.
        pub y_scales: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// `uint` in the shader.
        pub k: u32,
        /// `uint` in the shader.
        pub stride: u32,
        /// `uint` in the shader.
        pub plane_words: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 44;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.x, gpu::Access::Read);
            writer.buffer(8, &self.y, gpu::Access::Write);
            writer.buffer(16, &self.y_scales, gpu::Access::Write);
            writer.buffer(24, &self.active_rows, gpu::Access::Read);
            writer.word(32, self.k);
            writer.word(36, self.stride);
            writer.word(40, self.plane_words);
        }
    }

    /// Specialisation constants of `quantize_rows.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `OUTPUT`: `uint`, constant 1.
        pub output: u32,
        /// `PER_THREAD`: `uint`, constant 2.
        pub per_thread: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 128, output: 2, per_thread: 1 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, self.output, self.per_thread]
        }
    }

    /// `quantize_rows.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "quantize_rows.t0",
        spirv: include_bytes!("quantize_rows.t0.spv"),
        push_size: 44,
        constant_ids: &[0, 1, 2],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `quantize_rows.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "quantize_rows.t1",
        spirv: include_bytes!("quantize_rows.t1.spv"),
        push_size: 44,
        constant_ids: &[0, 1, 2],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `quantize_rows.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/bench/random/random.comp`.
pub mod random {
    /// Push constants of `random.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Written by the shader.
        pub words: gpu::Address,
        /// `uint` in the shader.
        pub count: u32,
        /// `uint` in the shader.
        pub seed: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 16;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.words, gpu::Access::Write);
            writer.word(8, self.count);
            writer.word(12, self.seed);
        }
    }

    /// Specialisation constants of `random.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `DISTRIBUTION`: `uint`, constant 1.
        pub distribution: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 256, distribution: 0 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, self.distribution]
        }
    }

    /// `random.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "random.t0",
        spirv: include_bytes!("random.t0.spv"),
        push_size: 16,
        constant_ids: &[0, 1],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `random.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/attention/rope/rope.comp`.
pub mod rope {
    /// Push constants of `rope.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub qkv: gpu::Address,
        /// Read by the shader.
        pub bias: gpu::Address,
        /// Read by the shader.
        pub q_weight: gpu::Address,
        /// Read by the shader.
        pub k_weight: gpu::Address,
        /// Read by the shader.
        pub coarse: gpu::Address,
        /// Read by the shader.
        pub fine: gpu::Address,
        /// Written by the shader.
        pub q: gpu::Address,
        /// Written by the shader.
        pub k: gpu::Address,
        /// Written by the shader.
        pub v: gpu::Address,
        /// Read by the shader.
        pub positions: gpu::Address,
        /// Read by the shader.
        pub slots: gpu::Address,
        /// Read by the shader.
        pub table: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// `uint` in the shader.
        pub qkv_stride: u32,
        /// `uint` in the shader.
        pub table_stride: u32,
        /// `float` in the shader.
        pub epsilon: f32,
        /// `float` in the shader.
        pub scale: f32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 120;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.qkv, gpu::Access::Read);
            writer.buffer(8, &self.bias, gpu::Access::Read);
            writer.buffer(16, &self.q_weight, gpu::Access::Read);
            writer.buffer(24, &self.k_weight, gpu::Access::Read);
            writer.buffer(32, &self.coarse, gpu::Access::Read);
            writer.buffer(40, &self.fine, gpu::Access::Read);
            writer.buffer(48, &self.q, gpu::Access::Write);
            writer.buffer(56, &self.k, gpu::Access::Write);
            writer.buffer(64, &self.v, gpu::Access::Write);
            writer.buffer(72, &self.positions, gpu::Access::Read);
            writer.buffer(80, &self.slots, gpu::Access::Read);
            writer.buffer(88, &self.table, gpu::Access::Read);
            writer.buffer(96, &self.active_rows, gpu::Access::Read);
            writer.word(104, self.qkv_stride);
            writer.word(108, self.table_stride);
            writer.word(112, self.epsilon.to_bits());
            writer.word(116, self.scale.to_bits());
        }
    }

    /// Specialisation constants of `rope.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `LANES`: `uint`, constant 1.
        pub lanes: u32,
        /// `HEAD_DIM`: `uint`, constant 2.
        pub head_dim: u32,
        /// `HEADS`: `uint`, constant 3.
        pub heads: u32,
        /// `KV_HEADS`: `uint`, constant 4.
        pub kv_heads: u32,
        /// `PAGE_SIZE`: `uint`, constant 5.
        pub page_size: u32,
        /// `KV_BITS`: `uint`, constant 6.
        pub kv_bits: u32,
        /// `QK_NORM`: `bool`, constant 7.
        pub qk_norm: bool,
        /// `QKV_BIAS`: `bool`, constant 8.
        pub qkv_bias: bool,
        /// `ROTATION`: `uint`, constant 9.
        pub rotation: u32,
        /// `PARTIALS`: `uint`, constant 10.
        pub partials: u32,
        /// `KEYS_AND_VALUES`: `uint`, constant 11.
        pub keys_and_values: u32,
        /// `VALUE_NORM`: `bool`, constant 12.
        pub value_norm: bool,
        /// `TEMPERATURE_BETA`: `float`, constant 13.
        pub temperature_beta: f32,
        /// `TEMPERATURE_ORIGINAL`: `uint`, constant 14.
        pub temperature_original: u32,
    }

    impl Default for Constants {
        #[allow(clippy::approx_constant)]
        fn default() -> Self {
            Self {
                threads: 64,
                lanes: 32,
                head_dim: 256,
                heads: 4,
                kv_heads: 1,
                page_size: 64,
                kv_bits: 16,
                qk_norm: false,
                qkv_bias: false,
                rotation: 0,
                partials: 1,
                keys_and_values: 0,
                value_norm: false,
                temperature_beta: 0.0,
                temperature_original: 0,
            }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                self.lanes,
                self.head_dim,
                self.heads,
                self.kv_heads,
                self.page_size,
                self.kv_bits,
                u32::from(self.qk_norm),
                u32::from(self.qkv_bias),
                self.rotation,
                self.partials,
                self.keys_and_values,
                u32::from(self.value_norm),
                self.temperature_beta.to_bits(),
                self.temperature_original,
            ]
        }
    }

    /// `rope.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "rope.t0",
        spirv: include_bytes!("rope.t0.spv"),
        push_size: 120,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `rope.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "rope.t1",
        spirv: include_bytes!("rope.t1.spv"),
        push_size: 120,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `rope.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/experts/router/router.comp`.
pub mod router {
    /// Push constants of `router.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub x: gpu::Address,
        /// Read by the shader.
        pub w: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Read and written by the shader.
        pub scores: gpu::Address,
        /// Read and written by the shader.
        pub counters: gpu::Address,
        /// Written by the shader.
        pub selected: gpu::Address,
        /// Written by the shader.
        pub weights: gpu::Address,
        /// `uint` in the shader.
        pub k: u32,
        /// `uint` in the shader.
        pub rows: u32,
        /// `uint` in the shader.
        pub experts: u32,
        /// `uint` in the shader.
        pub per_token: u32,
        /// `float` in the shader.
        pub epsilon: f32,
        /// `uint` in the shader.
        pub plane_words: u32,
        /// Read by the shader.
        pub scales: gpu::Address,
        /// Read by the shader.
        pub block: gpu::Address,
        /// Written by the shader.
        pub stream: gpu::Address,
        /// Read by the shader.
        pub norm_weight: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// Written by the shader.
        pub y_scales: gpu::Address,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 128;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.x, gpu::Access::Read);
            writer.buffer(8, &self.w, gpu::Access::Read);
            writer.buffer(16, &self.active_rows, gpu::Access::Read);
            writer.buffer(24, &self.scores, gpu::Access::ReadWrite);
            writer.buffer(32, &self.counters, gpu::Access::ReadWrite);
            writer.buffer(40, &self.selected, gpu::Access::Write);
            writer.buffer(48, &self.weights, gpu::Access::Write);
            writer.word(56, self.k);
            writer.word(60, self.rows);
            writer.word(64, self.experts);
            writer.word(68, self.per_token);
            writer.word(72, self.epsilon.to_bits());
            writer.word(76, self.plane_words);
            writer.buffer(80, &self.scales, gpu::Access::Read);
            writer.buffer(88, &self.block, gpu::Access::Read);
            writer.buffer(96, &self.stream, gpu::Access::Write);
            writer.buffer(104, &self.norm_weight, gpu::Access::Read);
            writer.buffer(112, &self.y, gpu::Access::Write);
            writer.buffer(120, &self.y_scales, gpu::Access::Write);
        }
    }

    /// Specialisation constants of `router.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `EXPERT_TILE`: `uint`, constant 1.
        pub expert_tile: u32,
        /// `ROWS`: `uint`, constant 2.
        pub rows: u32,
        /// `MAX_EXPERTS`: `uint`, constant 3.
        pub max_experts: u32,
        /// `RENORMALIZE`: `bool`, constant 4.
        pub renormalize: bool,
        /// `SCALED`: `bool`, constant 5.
        pub scaled: bool,
        /// `THREADS_PER_PARTIAL`: `uint`, constant 6.
        pub threads_per_partial: u32,
        /// `BLOCK_PARTIALS`: `uint`, constant 7.
        pub block_partials: u32,
        /// `OUTPUT`: `uint`, constant 8.
        pub output: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self {
                threads: 256,
                expert_tile: 4,
                rows: 1,
                max_experts: 512,
                renormalize: true,
                scaled: false,
                threads_per_partial: 1,
                block_partials: 0,
                output: 0,
            }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                self.expert_tile,
                self.rows,
                self.max_experts,
                u32::from(self.renormalize),
                u32::from(self.scaled),
                self.threads_per_partial,
                self.block_partials,
                self.output,
            ]
        }
    }

    /// `router.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "router.t0",
        spirv: include_bytes!("router.t0.spv"),
        push_size: 128,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `router.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "router.t1",
        spirv: include_bytes!("router.t1.spv"),
        push_size: 128,
        constant_ids: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `router.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/row_mean/row_mean.comp`.
pub mod row_mean {
    /// Push constants of `row_mean.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub x: gpu::Address,
        /// Read by the shader.
        pub ranges: gpu::Address,
        /// Read by the shader.
        pub active_ranges: gpu::Address,
        /// Written by the shader.
        pub y: gpu::Address,
        /// `uint` in the shader.
        pub n: u32,
        /// `uint` in the shader.
        pub x_stride: u32,
        /// `uint` in the shader.
        pub y_stride: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 44;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.x, gpu::Access::Read);
            writer.buffer(8, &self.ranges, gpu::Access::Read);
            writer.buffer(16, &self.active_ranges, gpu::Access::Read);
            writer.buffer(24, &self.y, gpu::Access::Write);
            writer.word(32, self.n);
            writer.word(36, self.x_stride);
            writer.word(40, self.y_stride);
        }
    }

    /// Specialisation constants of `row_mean.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `OUTPUT`: `uint`, constant 1.
        pub output: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 64, output: 0 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, self.output]
        }
    }

    /// `row_mean.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "row_mean.t0",
        spirv: include_bytes!("row_mean.t0.spv"),
        push_size: 44,
        constant_ids: &[0, 1],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `row_mean.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/sample/sample_blocks.comp`.
pub mod sample_blocks {
    /// Push constants of `sample_blocks.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub logits: gpu::Address,
        /// Read by the shader.
        pub params: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Read by the shader.
        pub rows: gpu::Address,
        /// Read by the shader.
        pub positions: gpu::Address,
        /// Read by the shader.
        pub slots: gpu::Address,
        /// Read by the shader.
        pub counts: gpu::Address,
        /// Read by the shader.
        pub biases: gpu::Address,
        /// Read by the shader.
        pub mask: gpu::Address,
        /// Written by the shader.
        pub partials: gpu::Address,
        /// `uint` in the shader.
        pub vocab: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 84;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.logits, gpu::Access::Read);
            writer.buffer(8, &self.params, gpu::Access::Read);
            writer.buffer(16, &self.active_rows, gpu::Access::Read);
            writer.buffer(24, &self.rows, gpu::Access::Read);
            writer.buffer(32, &self.positions, gpu::Access::Read);
            writer.buffer(40, &self.slots, gpu::Access::Read);
            writer.buffer(48, &self.counts, gpu::Access::Read);
            writer.buffer(56, &self.biases, gpu::Access::Read);
            writer.buffer(64, &self.mask, gpu::Access::Read);
            writer.buffer(72, &self.partials, gpu::Access::Write);
            writer.word(80, self.vocab);
        }
    }

    /// Specialisation constants of `sample_blocks.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `VEC4_LOADS`: `bool`, constant 1.
        pub vec4_loads: bool,
        /// `COUNTS`: `bool`, constant 2.
        pub counts: bool,
        /// `BIASES`: `bool`, constant 3.
        pub biases: bool,
        /// `MASK`: `bool`, constant 4.
        pub mask: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 256, vec4_loads: true, counts: false, biases: false, mask: false }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                u32::from(self.vec4_loads),
                u32::from(self.counts),
                u32::from(self.biases),
                u32::from(self.mask),
            ]
        }
    }

    /// `sample_blocks.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "sample_blocks.t0",
        spirv: include_bytes!("sample_blocks.t0.spv"),
        push_size: 84,
        constant_ids: &[0, 1, 2, 3, 4],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `sample_blocks.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "sample_blocks.t1",
        spirv: include_bytes!("sample_blocks.t1.spv"),
        push_size: 84,
        constant_ids: &[0, 1, 2, 3, 4],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `sample_blocks.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/sample/sample_collect.comp`.
pub mod sample_collect {
    /// Push constants of `sample_collect.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub logits: gpu::Address,
        /// Read by the shader.
        pub params: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Read by the shader.
        pub rows: gpu::Address,
        /// Read by the shader.
        pub slots: gpu::Address,
        /// Read by the shader.
        pub counts: gpu::Address,
        /// Read by the shader.
        pub biases: gpu::Address,
        /// Read by the shader.
        pub mask: gpu::Address,
        /// Read by the shader.
        pub partials: gpu::Address,
        /// Read and written by the shader.
        pub states: gpu::Address,
        /// Written by the shader.
        pub candidates: gpu::Address,
        /// `uint` in the shader.
        pub vocab: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 92;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.logits, gpu::Access::Read);
            writer.buffer(8, &self.params, gpu::Access::Read);
            writer.buffer(16, &self.active_rows, gpu::Access::Read);
            writer.buffer(24, &self.rows, gpu::Access::Read);
            writer.buffer(32, &self.slots, gpu::Access::Read);
            writer.buffer(40, &self.counts, gpu::Access::Read);
            writer.buffer(48, &self.biases, gpu::Access::Read);
            writer.buffer(56, &self.mask, gpu::Access::Read);
            writer.buffer(64, &self.partials, gpu::Access::Read);
            writer.buffer(72, &self.states, gpu::Access::ReadWrite);
            writer.buffer(80, &self.candidates, gpu::Access::Write);
            writer.word(88, self.vocab);
        }
    }

    /// Specialisation constants of `sample_collect.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `VEC4_LOADS`: `bool`, constant 1.
        pub vec4_loads: bool,
        /// `COUNTS`: `bool`, constant 2.
        pub counts: bool,
        /// `BIASES`: `bool`, constant 3.
        pub biases: bool,
        /// `MASK`: `bool`, constant 4.
        pub mask: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 256, vec4_loads: true, counts: false, biases: false, mask: false }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![
                self.threads,
                u32::from(self.vec4_loads),
                u32::from(self.counts),
                u32::from(self.biases),
                u32::from(self.mask),
            ]
        }
    }

    /// `sample_collect.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "sample_collect.t0",
        spirv: include_bytes!("sample_collect.t0.spv"),
        push_size: 92,
        constant_ids: &[0, 1, 2, 3, 4],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `sample_collect.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/sample/sample_count.comp`.
pub mod sample_count {
    /// Push constants of `sample_count.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Read by the shader.
        pub tokens: gpu::Address,
        /// Read by the shader.
        pub slots: gpu::Address,
        /// Read and written by the shader.
        pub counts: gpu::Address,
        /// `uint` in the shader.
        pub rows: u32,
        /// `uint` in the shader.
        pub vocab: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 40;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.active_rows, gpu::Access::Read);
            writer.buffer(8, &self.tokens, gpu::Access::Read);
            writer.buffer(16, &self.slots, gpu::Access::Read);
            writer.buffer(24, &self.counts, gpu::Access::ReadWrite);
            writer.word(32, self.rows);
            writer.word(36, self.vocab);
        }
    }

    /// Specialisation constants of `sample_count.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `REVERT`: `bool`, constant 1.
        pub revert: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 64, revert: false }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, u32::from(self.revert)]
        }
    }

    /// `sample_count.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "sample_count.t0",
        spirv: include_bytes!("sample_count.t0.spv"),
        push_size: 40,
        constant_ids: &[0, 1],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `sample_count.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/sample/sample_join.comp`.
pub mod sample_join {
    /// Push constants of `sample_join.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub logits: gpu::Address,
        /// Read by the shader.
        pub params: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Read by the shader.
        pub rows: gpu::Address,
        /// Read by the shader.
        pub positions: gpu::Address,
        /// Read by the shader.
        pub slots: gpu::Address,
        /// Read and written by the shader.
        pub counts: gpu::Address,
        /// Read by the shader.
        pub partials: gpu::Address,
        /// Written by the shader.
        pub states: gpu::Address,
        /// Written by the shader.
        pub sampled: gpu::Address,
        /// Written by the shader.
        pub next_tokens: gpu::Address,
        /// Written by the shader.
        pub next_positions: gpu::Address,
        /// Read by the shader.
        pub stop_tokens: gpu::Address,
        /// Read and written by the shader.
        pub run: gpu::Address,
        /// `uint` in the shader.
        pub vocab: u32,
        /// `uint` in the shader.
        pub entries: u32,
        /// `uint` in the shader.
        pub blocks: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 124;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.logits, gpu::Access::Read);
            writer.buffer(8, &self.params, gpu::Access::Read);
            writer.buffer(16, &self.active_rows, gpu::Access::Read);
            writer.buffer(24, &self.rows, gpu::Access::Read);
            writer.buffer(32, &self.positions, gpu::Access::Read);
            writer.buffer(40, &self.slots, gpu::Access::Read);
            writer.buffer(48, &self.counts, gpu::Access::ReadWrite);
            writer.buffer(56, &self.partials, gpu::Access::Read);
            writer.buffer(64, &self.states, gpu::Access::Write);
            writer.buffer(72, &self.sampled, gpu::Access::Write);
            writer.buffer(80, &self.next_tokens, gpu::Access::Write);
            writer.buffer(88, &self.next_positions, gpu::Access::Write);
            writer.buffer(96, &self.stop_tokens, gpu::Access::Read);
            writer.buffer(104, &self.run, gpu::Access::ReadWrite);
            writer.word(112, self.vocab);
            writer.word(116, self.entries);
            writer.word(120, self.blocks);
        }
    }

    /// Specialisation constants of `sample_join.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `COUNTS`: `bool`, constant 1.
        pub counts: bool,
        /// `FILTERS`: `bool`, constant 2.
        pub filters: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 128, counts: false, filters: false }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, u32::from(self.counts), u32::from(self.filters)]
        }
    }

    /// `sample_join.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "sample_join.t0",
        spirv: include_bytes!("sample_join.t0.spv"),
        push_size: 124,
        constant_ids: &[0, 1, 2],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `sample_join.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "sample_join.t1",
        spirv: include_bytes!("sample_join.t1.spv"),
        push_size: 124,
        constant_ids: &[0, 1, 2],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `sample_join.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/sample/sample_select.comp`.
pub mod sample_select {
    /// Push constants of `sample_select.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub logits: gpu::Address,
        /// Read by the shader.
        pub params: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Read by the shader.
        pub rows: gpu::Address,
        /// Read by the shader.
        pub positions: gpu::Address,
        /// Read by the shader.
        pub slots: gpu::Address,
        /// Read and written by the shader.
        pub counts: gpu::Address,
        /// Read by the shader.
        pub states: gpu::Address,
        /// Read by the shader.
        pub candidates: gpu::Address,
        /// Written by the shader.
        pub sampled: gpu::Address,
        /// Written by the shader.
        pub next_tokens: gpu::Address,
        /// Written by the shader.
        pub next_positions: gpu::Address,
        /// Read by the shader.
        pub stop_tokens: gpu::Address,
        /// Read and written by the shader.
        pub run: gpu::Address,
        /// `uint` in the shader.
        pub vocab: u32,
        /// `uint` in the shader.
        pub entries: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 120;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.logits, gpu::Access::Read);
            writer.buffer(8, &self.params, gpu::Access::Read);
            writer.buffer(16, &self.active_rows, gpu::Access::Read);
            writer.buffer(24, &self.rows, gpu::Access::Read);
            writer.buffer(32, &self.positions, gpu::Access::Read);
            writer.buffer(40, &self.slots, gpu::Access::Read);
            writer.buffer(48, &self.counts, gpu::Access::ReadWrite);
            writer.buffer(56, &self.states, gpu::Access::Read);
            writer.buffer(64, &self.candidates, gpu::Access::Read);
            writer.buffer(72, &self.sampled, gpu::Access::Write);
            writer.buffer(80, &self.next_tokens, gpu::Access::Write);
            writer.buffer(88, &self.next_positions, gpu::Access::Write);
            writer.buffer(96, &self.stop_tokens, gpu::Access::Read);
            writer.buffer(104, &self.run, gpu::Access::ReadWrite);
            writer.word(112, self.vocab);
            writer.word(116, self.entries);
        }
    }

    /// Specialisation constants of `sample_select.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `COUNTS`: `bool`, constant 1.
        pub counts: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 256, counts: false }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, u32::from(self.counts)]
        }
    }

    /// `sample_select.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "sample_select.t0",
        spirv: include_bytes!("sample_select.t0.spv"),
        push_size: 120,
        constant_ids: &[0, 1],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `sample_select.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/sample/sample_top.comp`.
pub mod sample_top {
    /// Push constants of `sample_top.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub logits: gpu::Address,
        /// Read by the shader.
        pub params: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Written by the shader.
        pub tops: gpu::Address,
        /// `uint` in the shader.
        pub vocab: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 36;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.logits, gpu::Access::Read);
            writer.buffer(8, &self.params, gpu::Access::Read);
            writer.buffer(16, &self.active_rows, gpu::Access::Read);
            writer.buffer(24, &self.tops, gpu::Access::Write);
            writer.word(32, self.vocab);
        }
    }

    /// Specialisation constants of `sample_top.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 256 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads]
        }
    }

    /// `sample_top.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "sample_top.t0",
        spirv: include_bytes!("sample_top.t0.spv"),
        push_size: 36,
        constant_ids: &[0],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `sample_top.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/sample/sample_top_join.comp`.
pub mod sample_top_join {
    /// Push constants of `sample_top_join.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub logits: gpu::Address,
        /// Read by the shader.
        pub params: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Read by the shader.
        pub partials: gpu::Address,
        /// Read by the shader.
        pub tops: gpu::Address,
        /// Read by the shader.
        pub run: gpu::Address,
        /// Written by the shader.
        pub top: gpu::Address,
        /// `uint` in the shader.
        pub vocab: u32,
        /// `uint` in the shader.
        pub entries: u32,
        /// `uint` in the shader.
        pub blocks: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 68;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.logits, gpu::Access::Read);
            writer.buffer(8, &self.params, gpu::Access::Read);
            writer.buffer(16, &self.active_rows, gpu::Access::Read);
            writer.buffer(24, &self.partials, gpu::Access::Read);
            writer.buffer(32, &self.tops, gpu::Access::Read);
            writer.buffer(40, &self.run, gpu::Access::Read);
            writer.buffer(48, &self.top, gpu::Access::Write);
            writer.word(56, self.vocab);
            writer.word(60, self.entries);
            writer.word(64, self.blocks);
        }
    }

    /// Specialisation constants of `sample_top_join.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 128 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads]
        }
    }

    /// `sample_top_join.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "sample_top_join.t0",
        spirv: include_bytes!("sample_top_join.t0.spv"),
        push_size: 68,
        constant_ids: &[0],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `sample_top_join.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "sample_top_join.t1",
        spirv: include_bytes!("sample_top_join.t1.spv"),
        push_size: 68,
        constant_ids: &[0],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `sample_top_join.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/score/score.comp`.
pub mod score {
    /// Push constants of `score.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub logits: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Read by the shader.
        pub targets: gpu::Address,
        /// Written by the shader.
        pub nll: gpu::Address,
        /// `uint` in the shader.
        pub vocab: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 36;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.logits, gpu::Access::Read);
            writer.buffer(8, &self.active_rows, gpu::Access::Read);
            writer.buffer(16, &self.targets, gpu::Access::Read);
            writer.buffer(24, &self.nll, gpu::Access::Write);
            writer.word(32, self.vocab);
        }
    }

    /// Specialisation constants of `score.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `VEC4_LOADS`: `bool`, constant 1.
        pub vec4_loads: bool,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 256, vec4_loads: true }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, u32::from(self.vec4_loads)]
        }
    }

    /// `score.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "score.t0",
        spirv: include_bytes!("score.t0.spv"),
        push_size: 36,
        constant_ids: &[0, 1],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// `score.comp` at tier T1.
    pub static T1: gpu::Shader = gpu::Shader {
        name: "score.t1",
        spirv: include_bytes!("score.t1.spv"),
        push_size: 36,
        constant_ids: &[0, 1],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `score.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];
}

/// Generated from `src/soft_tokens/soft_tokens.comp`.
pub mod soft_tokens {
    /// Push constants of `soft_tokens.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// Read by the shader.
        pub tokens: gpu::Address,
        /// Read by the shader.
        pub soft: gpu::Address,
        /// Written by the shader.
        pub residual: gpu::Address,
        /// `uint` in the shader.
        pub hidden: u32,
        /// `uint` in the shader.
        pub soft_rows: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 40;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.active_rows, gpu::Access::Read);
            writer.buffer(8, &self.tokens, gpu::Access::Read);
            writer.buffer(16, &self.soft, gpu::Access::Read);
            writer.buffer(24, &self.residual, gpu::Access::Write);
            writer.word(32, self.hidden);
            writer.word(36, self.soft_rows);
        }
    }

    /// Specialisation constants of `soft_tokens.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 64 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads]
        }
    }

    /// `soft_tokens.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "soft_tokens.t0",
        spirv: include_bytes!("soft_tokens.t0.spv"),
        push_size: 40,
        constant_ids: &[0],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `soft_tokens.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/softcap/softcap.comp`.
pub mod softcap {
    /// Push constants of `softcap.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read and written by the shader.
        pub logits: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// `uint` in the shader.
        pub n: u32,
        /// `float` in the shader.
        pub cap: f32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 24;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.logits, gpu::Access::ReadWrite);
            writer.buffer(8, &self.active_rows, gpu::Access::Read);
            writer.word(16, self.n);
            writer.word(20, self.cap.to_bits());
        }
    }

    /// Specialisation constants of `softcap.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 256 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads]
        }
    }

    /// `softcap.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "softcap.t0",
        spirv: include_bytes!("softcap.t0.spv"),
        push_size: 24,
        constant_ids: &[0],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `softcap.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/attention/split_qkv/split_qkv.comp`.
pub mod split_qkv {
    /// Push constants of `split_qkv.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub qkv: gpu::Address,
        /// Read by the shader.
        pub bias: gpu::Address,
        /// Written by the shader.
        pub q: gpu::Address,
        /// Written by the shader.
        pub k: gpu::Address,
        /// Written by the shader.
        pub v: gpu::Address,
        /// Read by the shader.
        pub positions: gpu::Address,
        /// Read by the shader.
        pub slots: gpu::Address,
        /// Read by the shader.
        pub table: gpu::Address,
        /// Read by the shader.
        pub active_rows: gpu::Address,
        /// `uint` in the shader.
        pub rows: u32,
        /// `uint` in the shader.
        pub qkv_stride: u32,
        /// `uint` in the shader.
        pub table_stride: u32,
        /// `float` in the shader.
        pub scale: f32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 88;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.qkv, gpu::Access::Read);
            writer.buffer(8, &self.bias, gpu::Access::Read);
            writer.buffer(16, &self.q, gpu::Access::Write);
            writer.buffer(24, &self.k, gpu::Access::Write);
            writer.buffer(32, &self.v, gpu::Access::Write);
            writer.buffer(40, &self.positions, gpu::Access::Read);
            writer.buffer(48, &self.slots, gpu::Access::Read);
            writer.buffer(56, &self.table, gpu::Access::Read);
            writer.buffer(64, &self.active_rows, gpu::Access::Read);
            writer.word(72, self.rows);
            writer.word(76, self.qkv_stride);
            writer.word(80, self.table_stride);
            writer.word(84, self.scale.to_bits());
        }
    }

    /// Specialisation constants of `split_qkv.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `HEAD_DIM`: `uint`, constant 1.
        pub head_dim: u32,
        /// `HEADS`: `uint`, constant 2.
        pub heads: u32,
        /// `KV_HEADS`: `uint`, constant 3.
        pub kv_heads: u32,
        /// `PAGE_SIZE`: `uint`, constant 4.
        pub page_size: u32,
        /// `KV_BITS`: `uint`, constant 5.
        pub kv_bits: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 256, head_dim: 72, heads: 16, kv_heads: 16, page_size: 64, kv_bits: 16 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, self.head_dim, self.heads, self.kv_heads, self.page_size, self.kv_bits]
        }
    }

    /// `split_qkv.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "split_qkv.t0",
        spirv: include_bytes!("split_qkv.t0.spv"),
        push_size: 88,
        constant_ids: &[0, 1, 2, 3, 4, 5],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `split_qkv.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}

/// Generated from `src/transcode/transcode.comp`.
pub mod transcode {
    /// Push constants of `transcode.comp`.
    #[derive(Clone, Debug)]
    pub struct Push {
        /// Read by the shader.
        pub source: gpu::Address,
        /// Written by the shader.
        pub values: gpu::Address,
        /// Written by the shader.
        pub scales: gpu::Address,
        /// Read and written by the shader.
        pub damage: gpu::Address,
        /// Read by the shader.
        pub external_scales: gpu::Address,
        /// `uint` in the shader.
        pub first_byte: u32,
        /// `uint` in the shader.
        pub row_bytes: u32,
        /// `uint` in the shader.
        pub rows: u32,
        /// `uint` in the shader.
        pub k: u32,
        /// `uint` in the shader.
        pub first_row: u32,
        /// `uint` in the shader.
        pub first_strip: u32,
        /// `uint` in the shader.
        pub strip_step: u32,
        /// `uint` in the shader.
        pub first_scale: u32,
    }

    impl gpu::PushConstants for Push {
        const SIZE: u32 = 72;

        fn encode(&self, writer: &mut gpu::PushWriter) {
            writer.buffer(0, &self.source, gpu::Access::Read);
            writer.buffer(8, &self.values, gpu::Access::Write);
            writer.buffer(16, &self.scales, gpu::Access::Write);
            writer.buffer(24, &self.damage, gpu::Access::ReadWrite);
            writer.buffer(32, &self.external_scales, gpu::Access::Read);
            writer.word(40, self.first_byte);
            writer.word(44, self.row_bytes);
            writer.word(48, self.rows);
            writer.word(52, self.k);
            writer.word(56, self.first_row);
            writer.word(60, self.first_strip);
            writer.word(64, self.strip_step);
            writer.word(68, self.first_scale);
        }
    }

    /// Specialisation constants of `transcode.comp`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Constants {
        /// `THREADS`: `uint`, constant 0.
        pub threads: u32,
        /// `ENCODING`: `uint`, constant 1.
        pub encoding: u32,
    }

    impl Default for Constants {
        fn default() -> Self {
            Self { threads: 64, encoding: 0 }
        }
    }

    impl gpu::SpecConstants for Constants {
        fn values(&self) -> Vec<u32> {
            vec![self.threads, self.encoding]
        }
    }

    /// `transcode.comp` at tier T0.
    pub static T0: gpu::Shader = gpu::Shader {
        name: "transcode.t0",
        spirv: include_bytes!("transcode.t0.spv"),
        push_size: 72,
        constant_ids: &[0, 1],
        local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(1), gpu::LocalSize::Fixed(1)],
    };

    /// All tiers of `transcode.comp`, lowest first.
    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0)];
}
