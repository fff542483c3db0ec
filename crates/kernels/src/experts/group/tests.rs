use super::{Group, GroupBuffers};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn too_few_groups_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = crate::case::arena(&device);
    let selected = arena.buffer("selected", 400).unwrap().view();
    let groups = GroupBuffers::new(&mut arena, 90, 4, 8).unwrap().groups();
    let mut recorder = device.recorder().unwrap();
    let kernel = Group::new(&device, 4, 8).unwrap();
    kernel.record(&mut recorder, "right", 90, &selected, &groups).unwrap();
    kernel.record(&mut recorder, "too many pairs", 100, &selected, &groups).unwrap_err();
    Group::new(&device, 4, 16).unwrap().record(&mut recorder, "width", 90, &selected, &groups).unwrap_err();
    assert!(Group::new(&device, 0, 8).is_err() && Group::new(&device, 513, 8).is_err());
}
