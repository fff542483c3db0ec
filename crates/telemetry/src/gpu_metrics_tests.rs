use super::*;
use crate::fixture::tables::{Halo, NONE, Table, radeon_780m, radeon_7900, radeon_8060s};
use Throttle::{Current, Other, Power, Thermal};

fn parse(bytes: &[u8]) -> GpuMetrics {
    GpuMetrics::parse(bytes).expect("a complete table")
}

#[test]
fn a_discrete_gpu_reports_degrees_percent_and_watts() {
    let bytes = radeon_7900(42, 303, 1 << 6 | 1 << 36);
    assert_eq!(bytes.len(), 120);
    let expected = GpuMetrics {
        version: (1, 3),
        temperature_celsius: Some(60.0),
        hotspot_celsius: Some(75.0),
        busy: Some(0.42),
        memory_busy: Some(0.33),
        socket_watts: Some(303.0),
        energy_counter: None,
        core_clock_hz: Some(2_500_000_000),
        memory_clock_hz: Some(1_249_000_000),
        throttle: Some(vec![Power, Thermal]),
        throttle_residency: vec![],
        npu_busy: None,
        npu_watts: None,
    };
    assert_eq!(parse(&bytes), expected);
}

#[test]
fn phoenix_reports_hundredths_milliwatts_and_average_clocks() {
    let bytes = radeon_780m(9731, 38_200, 1 << 2 | 1 << 5);
    assert_eq!(bytes.len(), 120);
    let metrics = parse(&bytes);
    assert_eq!((metrics.version, metrics.temperature_celsius), ((2, 1), Some(71.0)));
    assert_eq!((metrics.busy, metrics.socket_watts), (Some(0.9731), Some(38.2)));
    assert_eq!((metrics.core_clock_hz, metrics.memory_clock_hz), (Some(2_700_000_000), Some(2_800_000_000)));
    assert_eq!(metrics.throttle, Some(vec![Power, Thermal]));
    assert_eq!((metrics.npu_busy, metrics.npu_watts), (None, None));
}

#[test]
fn strix_halo_reports_the_npu_and_wide_power() {
    let bytes = radeon_8060s(&Halo::default());
    assert_eq!(bytes.len(), 264);
    let metrics = parse(&bytes);
    assert_eq!((metrics.version, metrics.temperature_celsius), ((3, 0), Some(64.5)));
    assert_eq!((metrics.busy, metrics.socket_watts), (Some(0.97), Some(118.25)));
    assert_eq!((metrics.core_clock_hz, metrics.memory_clock_hz), (Some(2_900_000_000), Some(1_000_000_000)));
    assert_eq!((metrics.npu_busy, metrics.npu_watts), (Some(0.25), Some(2.15)));
    assert_eq!(metrics.throttle, None);
    let residency =
        [(Thermal, 0), (Power, 0), (Power, 0), (Power, 1000), (Thermal, 0), (Thermal, 0), (Thermal, 0)];
    assert_eq!(metrics.throttle_residency, residency);
}

#[test]
fn load_of_the_npu_is_unknown_while_its_unit_is() {
    let npu_busy =
        |npu_load, core_load| parse(&radeon_8060s(&Halo { npu_load, core_load, ..Halo::default() })).npu_busy;
    assert_eq!(npu_busy(0, 0), Some(0.0));
    assert_eq!(npu_busy(80, 90), None);
    assert_eq!(npu_busy(80, 101), Some(0.008));
    assert_eq!(npu_busy(10_000, NONE), Some(1.0));
    assert_eq!(npu_busy(10_001, 0), None);
    assert_eq!(npu_busy(NONE, 4000), None);
}

#[test]
fn layouts_agree_with_the_structs_of_the_kernel() {
    let clocks = [1100, 1, 1200, 1, 1, 1, 1, 2100, 1, 2200, 1, 1, 1, 1];
    let discrete = |content| {
        let table = Table::new(1, content);
        let table = if content == 0 { table.u64(&[7]) } else { table };
        let table = table.u16(&[50, 60, 1, 1, 1, 1, 30, 20, 1, 90]);
        let table = if content == 0 { table.u32(&[7]) } else { table.u64(&[7, 7]) };
        let table = table.u16(&clocks).u32(&[4]).u16(&[1]);
        let table =
            if content == 0 { table.u8(&[1, 1]) } else { table.u16(&[1; 3]).u32(&[1; 2]).u16(&[1; 4]) };
        let table = if content >= 2 { table.u64(&[1]) } else { table };
        if content >= 3 { table.u16(&[1; 4]).u64(&[1 << 16]) } else { table }
    };
    for (content, size, throttle) in [(0, 80, Other), (1, 96, Other), (2, 104, Other), (3, 120, Current)] {
        let bytes = discrete(content).finish();
        let metrics = parse(&bytes);
        assert_eq!(bytes.len(), size);
        assert_eq!((metrics.temperature_celsius, metrics.hotspot_celsius), (Some(50.0), Some(60.0)));
        assert_eq!((metrics.busy, metrics.memory_busy), (Some(0.3), Some(0.2)));
        assert_eq!((metrics.socket_watts, metrics.energy_counter), (Some(90.0), None));
        let clocks = (metrics.core_clock_hz, metrics.memory_clock_hz);
        assert_eq!(clocks, (Some(2_100_000_000), Some(2_200_000_000)));
        assert_eq!(metrics.throttle, Some(vec![throttle]), "v1.{content}");
    }
}

#[test]
fn layouts_of_apus_agree_with_the_structs_of_the_kernel() {
    let clocks = [1100, 1, 1200, 1, 1, 1, 2100, 1, 2200, 1, 1, 1];
    for (content, size, throttle) in
        [(0, 120, Power), (1, 120, Power), (2, 128, Thermal), (3, 152, Thermal), (4, 168, Thermal)]
    {
        let table = Table::new(2, content);
        let table = if content == 0 { table.u64(&[7]) } else { table };
        let table = table.u16(&[5025]).u16(&[1; 11]).u16(&[3050, 1]);
        let table = if content == 0 { table } else { table.u64(&[7]) };
        let table = table.u16(&[15_500]).u16(&[1; 11]).u16(&clocks).u16(&[1; 10]).u32(&[1]);
        let table = if content == 0 { table.u16(&[1; 2]) } else { table.u16(&[1; 4]) };
        let table = if content >= 2 { table.u64(&[1 << 32]) } else { table };
        let table = if content >= 3 { table.u16(&[1; 12]) } else { table };
        let bytes = if content >= 4 { table.u16(&[1; 6]) } else { table }.finish();
        let metrics = parse(&bytes);
        assert_eq!(bytes.len(), size);
        assert_eq!((metrics.temperature_celsius, metrics.busy), (Some(50.25), Some(0.305)));
        assert_eq!(metrics.socket_watts, Some(15.5));
        let clocks = (metrics.core_clock_hz, metrics.memory_clock_hz);
        assert_eq!(clocks, (Some(2_100_000_000), Some(2_200_000_000)));
        assert_eq!(metrics.throttle, Some(vec![throttle]), "v2.{content}");
    }
}

#[test]
fn layouts_of_instinct_agree_with_the_structs_of_the_kernel() {
    for (content, size) in [(4, 288), (5, 360), (6, 1664), (7, 2208), (8, 3872)] {
        let table = Table::new(1, content).u16(&[60, 1, 1, 500, 30, 20]);
        let table = match content {
            4 => table.u16(&[1; 4]),
            5 => table.u16(&[1; 36]),
            6 => table,
            _ => table.u64(&[1]),
        };
        let table = table.u64(&[1 << 16, 7]);
        let table = if content <= 5 { table.u32(&[4]) } else { table.u32(&[1, 10, 11, 12, 13, 14]) };
        let table = table.u32(&[1]).u16(&[1; 4]).u32(&[1; 2]).u64(&[1; 5]);
        let table = if content == 4 { table } else { table.u32(&[1; 2]) };
        let table = table.u64(&[1; 16]);
        let table = if content <= 6 { table } else { table.u16(&[1; 9]) };
        let table = table.u64(&[1]).u16(&[2100]).u16(&[1; 19]).u16(&[2200, 1]);
        // Per-partition statistics: 8 of 168, 232 and 440 bytes.
        let table = match content {
            4 | 5 => table,
            6 => table.u64(&[1; 168]).u32(&[1]),
            7 => table.u64(&[1; 232]).u32(&[1]),
            _ => table.u64(&[1; 440]).u32(&[1]),
        };
        let bytes = table.finish();
        let metrics = parse(&bytes);
        assert_eq!(bytes.len(), size);
        assert_eq!((metrics.temperature_celsius, metrics.hotspot_celsius), (None, Some(60.0)));
        assert_eq!((metrics.busy, metrics.memory_busy), (Some(0.3), Some(0.2)));
        assert_eq!((metrics.socket_watts, metrics.energy_counter), (Some(500.0), Some(1 << 16)));
        let clocks = (metrics.core_clock_hz, metrics.memory_clock_hz);
        assert_eq!(clocks, (Some(2_100_000_000), Some(2_200_000_000)));
        let counters: Vec<u32> = metrics.throttle_residency.iter().map(|(_, count)| *count).collect();
        if content <= 5 {
            assert_eq!((metrics.throttle, counters), (Some(vec![Other]), vec![]));
        } else {
            assert_eq!((metrics.throttle, counters), (None, vec![10, 11, 12, 13, 14]));
        }
    }
}

#[test]
fn fields_that_the_driver_did_not_set_are_unknown() {
    for layout in &LAYOUTS {
        let mut bytes = vec![0xff; layout.size];
        bytes[..2].copy_from_slice(&(layout.size as u16).to_le_bytes());
        (bytes[2], bytes[3]) = layout.version;
        let expected = GpuMetrics {
            version: layout.version,
            temperature_celsius: None,
            hotspot_celsius: None,
            busy: None,
            memory_busy: None,
            socket_watts: None,
            energy_counter: None,
            core_clock_hz: None,
            memory_clock_hz: None,
            throttle: None,
            throttle_residency: vec![],
            npu_busy: None,
            npu_watts: None,
        };
        assert_eq!(parse(&bytes), expected);
    }
}

#[test]
fn short_tables_and_unknown_versions_are_rejected() {
    for table in [radeon_7900(1, 1, 0), radeon_780m(1, 1, 0), radeon_8060s(&Halo::default())] {
        for len in 0..table.len() {
            assert_eq!(GpuMetrics::parse(&table[..len]), None, "{len} bytes");
        }
        // A header that promises less or more than there is.
        for size in [0, 4, table.len() as u16 - 1, table.len() as u16 + 1, u16::MAX] {
            let mut table = table.clone();
            table[..2].copy_from_slice(&size.to_le_bytes());
            assert_eq!(GpuMetrics::parse(&table), None, "{size}");
        }
        for version in [(0, 0), (1, 9), (2, 5), (3, 1), (4, 0), (255, 255)] {
            let mut table = table.clone();
            (table[2], table[3]) = version;
            assert_eq!(GpuMetrics::parse(&table), None, "{version:?}");
        }
        // A later kernel may append fields.
        let mut longer = table.clone();
        longer.extend([0; 8]);
        longer[..2].copy_from_slice(&(table.len() as u16 + 8).to_le_bytes());
        assert_eq!(GpuMetrics::parse(&longer), GpuMetrics::parse(&table));
    }
}

#[test]
fn values_out_of_range_are_unknown() {
    assert_eq!(parse(&radeon_7900(101, 300, 0)).busy, None);
    assert_eq!(parse(&radeon_780m(10_001, 300, 0)).busy, None);
    // 28 in firmware that reports watts: neither 28 mW nor certainly 28 W.
    assert_eq!(parse(&radeon_780m(100, 28, 0)).socket_watts, None);
    assert_eq!(parse(&radeon_780m(100, 500, 0)).socket_watts, Some(0.5));
    assert_eq!(parse(&radeon_7900(0, 0, 0)).socket_watts, Some(0.0));
    assert_eq!(parse(&radeon_7900(0, 0, 1 << 56)).throttle, Some(vec![Other]));
}

/// Marsaglia's xorshift64.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn random_bytes_give_values_in_range_or_none() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let mut parsed = 0;
    for _ in 0..20_000 {
        let len = random(&mut state) as usize % 512;
        let mut bytes: Vec<u8> = (0..len).map(|_| random(&mut state) as u8).collect();
        // Half of the tables have a header that can be right.
        if len >= 4 && random(&mut state).is_multiple_of(2) {
            let layout = &LAYOUTS[random(&mut state) as usize % LAYOUTS.len()];
            bytes[..2].copy_from_slice(&(len as u16).to_le_bytes());
            (bytes[2], bytes[3]) = layout.version;
        }
        let Some(metrics) = GpuMetrics::parse(&bytes) else { continue };
        parsed += 1;
        for share in [metrics.busy, metrics.memory_busy, metrics.npu_busy].into_iter().flatten() {
            assert!((0.0..=1.0).contains(&share), "{share}");
        }
        assert!(metrics.socket_watts.is_none_or(|watts| watts.is_finite() && watts >= 0.0));
    }
    assert!(parsed > 1000, "{parsed} tables were long enough");
}
