//! The Vulkan instance: loader, optional validation layer, and the list of devices.

use std::{
    ffi::{CStr, c_void},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ash::vk;

use crate::{
    adapter::Adapter,
    error::{Error, Result},
    faults::Fault,
};

const VALIDATION_LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

/// How to open the instance.
#[derive(Clone, Debug, Default)]
pub struct InstanceOptions {
    /// Load the Khronos validation layer and collect what it says; an error where the layer is not installed.
    pub validation: bool,
}

/// The entry to Vulkan. Cheap to clone; closed when the last clone and everything made from it is gone.
#[derive(Clone)]
pub struct Instance {
    pub(crate) inner: Arc<InstanceInner>,
}

pub(crate) struct InstanceInner {
    // Also keeps libvulkan mapped as long as its functions may be called.
    pub entry: ash::Entry,
    pub raw: ash::Instance,
    messenger: Option<(ash::ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    messages: Box<Mutex<Vec<String>>>,
    /// Version of the validation layer's headers, when it is loaded.
    pub validation_version: Option<u32>,
    pub faults: Vec<Fault>,
}

impl Instance {
    /// Opens the loader and makes an instance. Faults named by `INDRIK_FAULT` hold for everything made from it.
    pub fn new(options: &InstanceOptions) -> Result<Self> {
        let faults =
            std::env::var("INDRIK_FAULT").map_or_else(|_| Ok(vec![]), |list| Fault::parse_list(&list))?;
        // SAFETY: the loader is the system's own library; its initialisers are trusted like any linked library's.
        let entry =
            unsafe { ash::Entry::load() }.map_err(|error| Error::NoLoader { reason: error.to_string() })?;

        let layer = if options.validation { Some(validation_layer(&entry)?) } else { None };
        let layer_names: Vec<_> = layer.iter().map(|_| VALIDATION_LAYER.as_ptr()).collect();
        let extension_names: Vec<_> = layer.iter().map(|_| ash::ext::debug_utils::NAME.as_ptr()).collect();

        let application = vk::ApplicationInfo::default()
            .application_name(c"indrik")
            .engine_name(c"indrik")
            .api_version(vk::API_VERSION_1_3);
        let create = vk::InstanceCreateInfo::default()
            .application_info(&application)
            .enabled_layer_names(&layer_names)
            .enabled_extension_names(&extension_names);
        // SAFETY: the create info and everything it points to live until the call returns.
        let raw = unsafe { entry.create_instance(&create, None) }
            .map_err(|result| Error::from_vk("vkCreateInstance", result))?;

        let messages = Box::new(Mutex::new(Vec::new()));
        let mut inner =
            InstanceInner { messenger: None, messages, validation_version: layer, faults, raw, entry };
        if layer.is_some() {
            inner.listen()?;
        }
        Ok(Self { inner: Arc::new(inner) })
    }

    /// All Vulkan devices, in the driver's order, usable or not.
    pub fn adapters(&self) -> Result<Vec<Adapter>> {
        // SAFETY: the instance is alive.
        let devices = unsafe { self.inner.raw.enumerate_physical_devices() }
            .map_err(|result| Error::from_vk("vkEnumeratePhysicalDevices", result))?;
        if devices.is_empty() {
            return Err(Error::NoDriver);
        }
        devices.into_iter().enumerate().map(|(index, raw)| Adapter::query(self, index, raw)).collect()
    }

    /// What the validation layer has said so far; empty without it.
    pub fn validation_messages(&self) -> Vec<String> {
        self.inner.messages().clone()
    }
}

impl InstanceInner {
    fn messages(&self) -> MutexGuard<'_, Vec<String>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&mut self) -> Result<()> {
        let debug_utils = ash::ext::debug_utils::Instance::new(&self.entry, &self.raw);
        let severities =
            vk::DebugUtilsMessageSeverityFlagsEXT::WARNING | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR;
        let create = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(severities)
            .message_type(vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION)
            .pfn_user_callback(Some(collect_message))
            .user_data((&raw const *self.messages).cast_mut().cast());
        // SAFETY: the user data is boxed, so it stays where it is while `self` moves, and it outlives the messenger,
        // which Drop destroys first.
        let messenger = unsafe { debug_utils.create_debug_utils_messenger(&create, None) }
            .map_err(|result| Error::from_vk("vkCreateDebugUtilsMessengerEXT", result))?;
        self.messenger = Some((debug_utils, messenger));
        Ok(())
    }
}

impl Drop for InstanceInner {
    fn drop(&mut self) {
        // SAFETY: every object made from the instance holds an Arc to it, so none is left; the messenger goes first.
        unsafe {
            if let Some((debug_utils, messenger)) = self.messenger.take() {
                debug_utils.destroy_debug_utils_messenger(messenger, None);
            }
            self.raw.destroy_instance(None);
        }
    }
}

fn validation_layer(entry: &ash::Entry) -> Result<u32> {
    // SAFETY: the entry is loaded.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }
        .map_err(|result| Error::from_vk("vkEnumerateInstanceLayerProperties", result))?;
    layers
        .iter()
        .find(|layer| layer.layer_name_as_c_str() == Ok(VALIDATION_LAYER))
        .map(|layer| layer.spec_version)
        .ok_or_else(|| Error::Unsupported {
            device: "the Vulkan loader".into(),
            missing: "VK_LAYER_KHRONOS_validation is not installed".into(),
            fix: "install the package vulkan-validationlayers (scripts/setup.sh does)".into(),
        })
}

unsafe extern "system" fn collect_message(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: `user` is the boxed list handed over in `listen`, alive as long as the messenger; `data` and its message
    // are valid during the callback by the specification.
    unsafe {
        let messages = &*user.cast::<Mutex<Vec<String>>>();
        let text =
            (*data).message_as_c_str().map_or_else(String::new, |text| text.to_string_lossy().into_owned());
        messages.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
    vk::FALSE
}
