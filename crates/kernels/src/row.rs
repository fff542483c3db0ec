//! Shared by kernels that keep a row in the registers of one workgroup: the division of the row among threads, and the
//! check of operands. Pure; tested without a GPU.

use gpu::{Caps, Error, Result, Tier, View};

/// How many threads keep a row, and how much of it each: thread t has the vec4s t, t + threads, t + 2 · threads, …
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPlan {
    /// Threads per workgroup: a power of two at T0, whole subgroups at T1.
    pub threads: u32,
    /// Vec4s per thread.
    pub vec4s_per_thread: u32,
}

/// Maximum vec4s per thread, in 32 registers.
const MAX_VEC4S_PER_THREAD: u32 = 8;
/// Maximum threads: with more there are few registers for each.
const MAX_THREADS: u32 = 1024;
/// Minimum threads at T0, where the subgroup size is unknown.
const MIN_THREADS_T0: u32 = 32;

/// The plan for rows of `n` values, a multiple of 4: the one with the fewest idle threads and, among those, the
/// smallest workgroup. Image encoders have thousands of rows, which fill a GPU with workgroups of any size; a
/// small one waits less at its barriers. None for rows that are too long for registers.
pub fn plan(caps: &Caps, n: usize, tier: Tier) -> Option<RowPlan> {
    let vec4s = u32::try_from(n / 4).ok().filter(|vec4s| *vec4s > 0 && n.is_multiple_of(4))?;
    let max_threads = max_threads(caps);
    let plans = (1..=MAX_VEC4S_PER_THREAD).map(|vec4s_per_thread| {
        let threads = vec4s.div_ceil(vec4s_per_thread);
        let threads = match tier {
            Tier::T0 => threads.next_power_of_two().max(MIN_THREADS_T0.min(max_threads)),
            _ => threads.next_multiple_of(caps.max_subgroup_size.max(8)),
        };
        RowPlan { threads, vec4s_per_thread }
    });
    plans
        .filter(|plan| plan.threads <= max_threads)
        .min_by_key(|plan| (plan.threads * plan.vec4s_per_thread, plan.threads))
}

/// The longest row that fits the registers of a workgroup.
pub fn max_length(caps: &Caps) -> usize {
    (max_threads(caps) * MAX_VEC4S_PER_THREAD * 4) as usize
}

/// The largest power of two that the device allows.
fn max_threads(caps: &Caps) -> u32 {
    MAX_THREADS.min(1 << caps.max_threads.ilog2())
}

/// The tiers of a device at which kernels that keep rows in registers have shaders, the best last.
pub fn tiers(caps: &Caps) -> impl Iterator<Item = Tier> {
    [Tier::T0, Tier::T1].into_iter().filter(|tier| *tier == Tier::T0 || caps.tier() >= Some(*tier))
}

/// Rejects f32 operands that are shorter than their number of values, or do not start at a multiple of 16 bytes
/// (kernels read vec4s). Buffers do; a slice of one might not.
pub fn check(what: &str, operands: &[(&str, Option<&View>, usize)]) -> Result<()> {
    let wrong = |reason: String| Err(Error::InvalidUse { what: what.to_string(), reason });
    for (name, view, values) in operands {
        let Some(view) = view else { continue };
        let bytes = *values as u64 * 4;
        if view.len() < bytes {
            return wrong(format!("{name} has {} bytes, but {bytes} are needed", view.len()));
        }
        if !view.address().is_multiple_of(16) {
            return wrong(format!("{name} does not start at a multiple of 16 bytes"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gpu::known;

    use super::*;

    #[test]
    fn plans_hold_the_row_and_fit_the_device() {
        for caps in [
            known::h200(),
            known::radeon_780m(),
            known::mesa_cpu(),
            known::mesa_cpu_wide(),
            known::bare_vulkan_13(),
        ] {
            for tier in tiers(&caps) {
                for n in [4, 16, 64, 1152, 2560, max_length(&caps)] {
                    let plan = plan(&caps, n, tier).expect("a plan");
                    assert!(plan.threads <= caps.max_threads, "{plan:?}");
                    assert!((plan.threads * plan.vec4s_per_thread * 4) as usize >= n, "{plan:?} for {n}");
                    match tier {
                        Tier::T0 => assert!(plan.threads.is_power_of_two(), "{plan:?}"),
                        _ => assert!(plan.threads.is_multiple_of(caps.max_subgroup_size), "{plan:?}"),
                    }
                }
                for n in [0, 6, max_length(&caps) + 4] {
                    assert_eq!(plan(&caps, n, tier), None, "{n}");
                }
            }
        }
    }

    #[test]
    fn rows_of_the_image_encoder_leave_few_threads_idle() {
        let of = |caps: &Caps, tier| plan(caps, 1152, tier).map(|plan| (plan.threads, plan.vec4s_per_thread));
        assert_eq!(of(&known::h200(), Tier::T1), Some((96, 3)));
        assert_eq!(of(&known::radeon_780m(), Tier::T1), Some((64, 5)));
        assert_eq!(of(&known::bare_vulkan_13(), Tier::T0), Some((64, 5)));
    }
}
