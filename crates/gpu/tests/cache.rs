//! The pipeline cache on disk with RADV's null device, a driver that reports cache hits.

use gpu::{Device, DeviceOptions, Instance, InstanceOptions};

// The only test of this binary, since it sets environment variables.
#[test]
fn the_second_start_loads_pipelines_from_the_cache_unless_it_is_damaged() {
    let Some(driver) = testkit::radv_driver() else { return };
    for (name, value) in
        [("RADV_FORCE_FAMILY", "phoenix"), ("VK_DRIVER_FILES", &driver), ("VK_ICD_FILENAMES", &driver)]
    {
        // SAFETY: no other thread is running that could read the environment.
        unsafe { std::env::set_var(name, value) };
    }
    let dir = tempfile::tempdir().unwrap();
    let options = DeviceOptions { cache_dir: Some(dir.path().into()), ..DeviceOptions::default() };
    let compile = || {
        let instance = Instance::new(&InstanceOptions::default()).unwrap();
        let adapters = instance.adapters().unwrap();
        let device = Device::open(gpu::select_adapter(&adapters, None).unwrap(), &options).unwrap();
        // Several variants, so that several threads compile through one cache.
        let variants = [&kernels::bench::probe::KERNEL, &kernels::sample::KERNEL]
            .map(|kernel| (kernel.variants)(device.caps()));
        let pipelines: Vec<_> =
            variants.iter().flatten().map(|variant| variant.pipeline(&device).unwrap()).collect();
        assert_eq!(device.counters().pipelines, 0, "creating a pipeline does not compile it");
        device.compile(&pipelines).unwrap();
        device.compile(&pipelines).unwrap();
        assert_eq!(device.counters().pipelines, pipelines.len() as u64, "each pipeline is compiled once");
        let from_cache = device.counters().pipelines_from_cache;
        (from_cache, pipelines.len() as u64, device.cache_file().unwrap().to_path_buf())
    };
    assert_eq!(compile().0, 0);
    let (from_cache, all, file) = compile();
    assert_eq!(from_cache, all, "the second start compiles nothing");

    let mut content = std::fs::read(&file).unwrap();
    let last = content.len() - 1;
    content[last] ^= 1;
    std::fs::write(&file, content).unwrap();
    assert_eq!(compile().0, 0, "a damaged file is ignored");
    assert_eq!(compile().0, all, "the damaged file was replaced");
}
