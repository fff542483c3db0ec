//! The Vulkan instance: loader and optional validation layer.

use std::{
    ffi::{CStr, c_void},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ash::vk;

use crate::{
    error::{Error, Result},
    faults::Fault,
};

const VALIDATION_LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

/// How to open the instance.
#[derive(Clone, Debug, Default)]
pub struct InstanceOptions {
    /// Load the Khronos validation layer and collect its messages. An error if the layer is not installed.
    pub validation: bool,
}

/// A Vulkan instance. Cheap to clone; destroyed when the last clone and everything made from it is dropped.
#[derive(Clone)]
pub struct Instance {
    pub(crate) inner: Arc<InstanceInner>,
}

pub(crate) struct InstanceInner {
    /// Keeps libvulkan loaded as long as its functions may be called.
    pub entry: ash::Entry,
    pub raw: ash::Instance,
    messenger: Option<(ash::ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    messages: Box<Mutex<Vec<String>>>,
    /// Header version of the validation layer, if it is loaded.
    pub validation_version: Option<u32>,
    pub faults: Vec<Fault>,
}

impl Instance {
    /// Opens the loader and creates an instance. Faults from `INDRIK_FAULT` apply to everything made from it.
    pub fn new(options: &InstanceOptions) -> Result<Self> {
        let faults =
            std::env::var("INDRIK_FAULT").map_or_else(|_| Ok(vec![]), |list| Fault::parse_list(&list))?;
        // SAFETY: the loader is a system library; its initialisers are trusted like those of any linked
        // library.
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
        // SAFETY: the create info and everything it points to outlive the call.
        let raw = unsafe { entry.create_instance(&create, None) }
            .map_err(|result| Error::from_vk("vkCreateInstance", result))?;

        let messages = Box::new(Mutex::new(Vec::new()));
        let mut inner =
            InstanceInner { messenger: None, messages, validation_version: layer, faults, raw, entry };
        if layer.is_some() {
            inner.collect_messages()?;
        }
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Messages of the validation layer so far; empty without it.
    pub fn validation_messages(&self) -> Vec<String> {
        self.inner.messages().clone()
    }
}

impl InstanceInner {
    fn messages(&self) -> MutexGuard<'_, Vec<String>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn collect_messages(&mut self) -> Result<()> {
        let debug_utils = ash::ext::debug_utils::Instance::new(&self.entry, &self.raw);
        let severities =
            vk::DebugUtilsMessageSeverityFlagsEXT::WARNING | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR;
        let create = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(severities)
            .message_type(vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION)
            .pfn_user_callback(Some(collect_message))
            .user_data((&raw const *self.messages).cast_mut().cast());
        // SAFETY: the user data is boxed, so its address stays valid when `self` moves, and it outlives the
        // messenger, which Drop destroys first. The callback has the required signature and does not unwind.
        let messenger = unsafe { debug_utils.create_debug_utils_messenger(&create, None) }
            .map_err(|result| Error::from_vk("vkCreateDebugUtilsMessengerEXT", result))?;
        self.messenger = Some((debug_utils, messenger));
        Ok(())
    }
}

impl Drop for InstanceInner {
    fn drop(&mut self) {
        // SAFETY: every object made from the instance holds an Arc to it, so none is left; the messenger is
        // destroyed first.
        unsafe {
            if let Some((debug_utils, messenger)) = self.messenger.take() {
                debug_utils.destroy_debug_utils_messenger(messenger, None);
            }
            self.raw.destroy_instance(None);
        }
    }
}

fn validation_layer(entry: &ash::Entry) -> Result<u32> {
    // SAFETY: the loader is open, and the call has no other requirements.
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
    // SAFETY: `user` is the boxed list passed in `collect_messages`, which outlives the messenger. The
    // specification guarantees that `data` and its message are valid during the callback.
    unsafe {
        let messages = &*user.cast::<Mutex<Vec<String>>>();
        let text =
            (*data).message_as_c_str().map_or_else(String::new, |text| text.to_string_lossy().into_owned());
        messages.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
    vk::FALSE
}
