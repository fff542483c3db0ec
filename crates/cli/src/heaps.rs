//! Use of GPU memory, for `/stats` and the monitor.

use gpu::Heap;
use server::stats::HeapStats;
use weights::plan::HeapUsage;

/// Use of each heap: what was planned for the model, in the order of heaps, and what the driver reports.
pub fn heap_stats(heaps: &[Heap], planned: &[HeapUsage]) -> Vec<HeapStats> {
    let heaps = heaps.iter().map(|heap| {
        let usage = planned.get(heap.index);
        let planned = |bytes: fn(&HeapUsage) -> u64| usage.map_or(0, bytes);
        HeapStats {
            heap: heap.index,
            device_local: heap.device_local,
            size_bytes: heap.size,
            budget_bytes: heap.budget,
            weights_bytes: planned(|usage| usage.weights),
            kv_cache_bytes: planned(|usage| usage.kv),
            scratch_bytes: planned(|usage| usage.scratch),
            other_processes_bytes: heap.budget.map(|budget| heap.size.saturating_sub(budget)),
            free_bytes: heap.budget.zip(heap.used).map(|(budget, used)| budget.saturating_sub(used)),
        }
    });
    heaps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heap(budget: Option<u64>, used: Option<u64>) -> Heap {
        Heap { index: 1, size: 1000, budget, used, device_local: true, host_visible: false }
    }

    #[test]
    fn what_the_driver_does_not_report_is_unknown() {
        let stats = heap_stats(&[heap(None, None), heap(Some(900), Some(950))], &[]);
        let known: Vec<_> = stats
            .iter()
            .map(|heap| (heap.budget_bytes, heap.other_processes_bytes, heap.free_bytes))
            .collect();
        assert_eq!(known, [(None, None, None), (Some(900), Some(100), Some(0))]);
        assert_eq!(stats[0].weights_bytes, 0);
    }
}
