//! Requests: from the bytes that the process passes to the driver's calls.
//!
//! Offsets of pointers and lengths are written out here, after the kernel's header, so that they check the structures
//! that the binary uses.

use libc::{EFAULT, EINVAL, ENOTTY, c_int};
use npu::runtime::{AccelIo as _, Call};
use npu::uapi::{self, CuConfig};

use crate::kernel::{Kernel, ObjectFacts, errno_of};

/// A field of a structure.
///
/// # Safety
/// `base` must point to a structure of at least `offset` bytes and a `T`.
unsafe fn field<T: Copy>(base: *const u8, offset: usize) -> T {
    // SAFETY: the caller vouches for the bytes; every `T` here is a number.
    unsafe { base.add(offset).cast::<T>().read_unaligned() }
}

/// A slice that a structure points to.
///
/// # Safety
/// The fields must be a pointer to `len` bytes that live as long as the call.
unsafe fn bytes<'a>(address: u64, len: usize) -> Result<&'a mut [u8], i32> {
    if address == 0 {
        return Err(EFAULT);
    }
    // SAFETY: the caller vouches for it.
    Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) })
}

/// Answers a request; the error number.
///
/// # Safety
/// `base` must point to the structure of the request, and its pointers to what they should.
pub unsafe fn answer(kernel: &mut Kernel, fd: c_int, request: u32, base: *mut u8) -> Result<(), i32> {
    if base.is_null() {
        return Err(EFAULT);
    }
    let node = kernel.node(fd)?;
    let call = |call: Call<'_>| node.call(call).map_err(|error| errno_of(&error));
    // SAFETY: in every arm, the structure is the request's, whose size is in its number, and pointers in it are valid for
    // the lengths beside them.
    unsafe {
        match request {
            uapi::DRM_VERSION => {
                let (mut name, mut version) = (String::new(), (0, 0));
                call(Call::Version { name: &mut name, version: &mut version })?;
                let room: u64 = field(base, 16);
                let target = bytes(field(base, 24), room as usize)?;
                let len = name.len().min(target.len());
                target[..len].copy_from_slice(&name.as_bytes()[..len]);
                base.cast::<i32>().write(version.0);
                base.add(4).cast::<i32>().write(version.1);
                base.add(16).cast::<u64>().write(name.len() as u64);
                Ok(())
            }
            uapi::CREATE_HWCTX => {
                let qos: *const uapi::QosInfo = field::<u64>(base, 16) as *const _;
                let qos = qos.as_ref().ok_or(EFAULT)?;
                call(Call::CreateContext { args: &mut *base.cast(), qos })
            }
            uapi::DESTROY_HWCTX => call(Call::DestroyContext(&*base.cast())),
            uapi::CONFIG_HWCTX => {
                let parameter = bytes(field(base, 8), field::<u32>(base, 16) as usize)?;
                let (head, units) = parameter.split_at_checked(8).ok_or(EINVAL)?;
                let count = usize::from(u16::from_le_bytes([head[0], head[1]]));
                let units: Vec<CuConfig> =
                    units.chunks_exact(8).take(count).map(|unit| field(unit.as_ptr(), 0)).collect();
                if units.len() != count {
                    return Err(EINVAL);
                }
                call(Call::ConfigContext { args: &*base.cast(), units: &units })
            }
            uapi::CREATE_BO => {
                call(Call::CreateBuffer(&mut *base.cast()))?;
                let kind: u32 = field(base, 24);
                let object = ObjectFacts {
                    node: fd,
                    is_shared: kind == 1,
                    is_heap: kind == 2,
                    is_in_heap: kind == 3,
                    npu_address: 0,
                };
                kernel.objects.insert(field(base, 28), object);
                Ok(())
            }
            uapi::GET_BO_INFO => {
                call(Call::BufferInfo(&mut *base.cast()))?;
                if let Some(object) = kernel.objects.get_mut(&field(base, 16)) {
                    object.npu_address = field(base, 40);
                }
                Ok(())
            }
            uapi::SYNC_BO => {
                let (handle, offset, len) = (field(base, 0), field(base, 8), field(base, 16));
                kernel.copy_in(handle, offset, len);
                call(Call::SyncBuffer(&*base.cast()))?;
                kernel.copy_out(handle, offset, len);
                Ok(())
            }
            uapi::GEM_CLOSE => {
                let result = call(Call::CloseBuffer(&*base.cast()));
                kernel.objects.remove(&field(base, 0));
                result
            }
            uapi::EXEC_CMD => {
                // One command: its handle is in the place of a list.
                let (command, count): (u64, u32) = (field(base, 24), field(base, 40));
                let command = u32::try_from(command).map_err(|_| EINVAL)?;
                let listed = bytes(field(base, 32), field::<u32>(base, 44) as usize * 4)?;
                if count != 1 {
                    return Err(EINVAL);
                }
                let listed: Vec<u32> =
                    listed.chunks_exact(4).map(|handle| field(handle.as_ptr(), 0)).collect();
                // The kernel reads and writes commands as the CPU does.
                kernel.copy_in(command, 0, 4096);
                let result = call(Call::Execute { args: &mut *base.cast(), command, buffers: &listed });
                kernel.copy_out(command, 0, 4096);
                kernel.has_run = true;
                result
            }
            uapi::GET_INFO => {
                let buffer = bytes(field(base, 8), field::<u32>(base, 4) as usize)?;
                call(Call::Info { args: &mut *base.cast(), buffer })
            }
            uapi::SYNCOBJ_TIMELINE_WAIT => {
                if field::<u32>(base, 24) != 1 {
                    return Err(EINVAL);
                }
                let handle = bytes(field(base, 0), 4)?;
                let point = bytes(field(base, 8), 8)?;
                call(Call::Wait {
                    syncobj: field(handle.as_ptr(), 0),
                    point: field(point.as_ptr(), 0),
                    deadline: field(base, 16),
                })
            }
            uapi::SYNCOBJ_DESTROY => call(Call::DestroyTimeline(&*base.cast())),
            _ => Err(ENOTTY),
        }
    }
}
