//! The driver compiler's report on a pipeline: registers, spills, assembly. Needs only a driver, no GPU.

use ash::vk;

use crate::{error::Result, pipeline::Pipeline};

/// One statistic of the driver's compiler.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistic {
    /// The driver's name for it.
    pub name: String,
    /// The value; booleans as 0 and 1.
    pub value: f64,
}

/// One executable that a pipeline was compiled to.
#[derive(Clone, Debug, Default)]
pub struct Executable {
    /// Subgroup size it was compiled for.
    pub subgroup_size: u32,
    /// The compiler's statistics.
    pub statistics: Vec<Statistic>,
    /// The compiler's internal representations as text. The last one is machine code, if the driver has a
    /// disassembler.
    pub representations: Vec<String>,
}

impl Executable {
    /// The representation closest to machine code.
    pub fn assembly(&self) -> &str {
        self.representations.iter().rev().find(|text| !text.trim().is_empty()).map_or("", String::as_str)
    }

    /// A statistic by name, ignoring case.
    pub fn statistic(&self, name: &str) -> Option<f64> {
        self.statistics.iter().find(|statistic| statistic.name.eq_ignore_ascii_case(name)).map(|s| s.value)
    }
}

impl Pipeline {
    /// The executables of this pipeline; compiles it if necessary. Empty unless the device was opened with
    /// `capture_statistics` and the driver supports `VK_KHR_pipeline_executable_properties`.
    pub fn executables(&self) -> Result<Vec<Executable>> {
        let inner = &*self.inner;
        let raw = inner.raw()?;
        let Some(functions) = &inner.device.executable_properties else { return Ok(vec![]) };
        let info = vk::PipelineInfoKHR::default().pipeline(raw);
        // SAFETY: the pipeline was created with CAPTURE_STATISTICS and CAPTURE_INTERNAL_REPRESENTATIONS.
        let properties = unsafe { functions.get_pipeline_executable_properties(&info) }
            .map_err(|result| inner.device.fail("vkGetPipelineExecutablePropertiesKHR", result))?;
        (0_u32..)
            .zip(&properties)
            .map(|(index, property)| {
                let executable =
                    vk::PipelineExecutableInfoKHR::default().pipeline(raw).executable_index(index);
                // SAFETY: as above; the index is below the count just returned.
                let statistics = unsafe { functions.get_pipeline_executable_statistics(&executable) }
                    .map_err(|result| inner.device.fail("vkGetPipelineExecutableStatisticsKHR", result))?;
                Ok(Executable {
                    subgroup_size: property.subgroup_size,
                    statistics: statistics.iter().map(statistic).collect(),
                    representations: self.representations(functions, &executable)?,
                })
            })
            .collect()
    }

    fn representations(
        &self,
        functions: &ash::khr::pipeline_executable_properties::Device,
        executable: &vk::PipelineExecutableInfoKHR<'_>,
    ) -> Result<Vec<String>> {
        let device = &self.inner.device;
        let call = functions.fp().get_pipeline_executable_internal_representations_khr;
        let failed = |result| device.fail("vkGetPipelineExecutableInternalRepresentationsKHR", result);
        let raw = device.raw.handle();
        let mut count = 0;
        // Called through the function pointer: texts are written only into storage that the caller has sized
        // with an earlier call. SAFETY: a null array queries the count.
        unsafe { call(raw, executable, &mut count, std::ptr::null_mut()) }.result().map_err(failed)?;
        let mut items = vec![vk::PipelineExecutableInternalRepresentationKHR::default(); count as usize];
        // SAFETY: the array has `count` elements with null data, which queries their sizes.
        unsafe { call(raw, executable, &mut count, items.as_mut_ptr()) }.result().map_err(failed)?;
        let mut representations: Vec<Vec<u8>> = items.iter().map(|item| vec![0; item.data_size]).collect();
        for (item, text) in items.iter_mut().zip(&mut representations) {
            item.p_data = text.as_mut_ptr().cast();
        }
        // SAFETY: each element points to storage of the size that it declares.
        unsafe { call(raw, executable, &mut count, items.as_mut_ptr()) }.result().map_err(failed)?;
        let representations = items.iter().zip(representations).filter(|(item, _)| item.is_text == vk::TRUE);
        Ok(representations
            .map(|(_, text)| String::from_utf8_lossy(&text).trim_end_matches('\0').to_string())
            .collect())
    }
}

fn statistic(raw: &vk::PipelineExecutableStatisticKHR<'_>) -> Statistic {
    // SAFETY: `format` identifies the member of the union that the driver wrote.
    let value = unsafe {
        match raw.format {
            vk::PipelineExecutableStatisticFormatKHR::BOOL32 => f64::from(raw.value.b32),
            vk::PipelineExecutableStatisticFormatKHR::INT64 => raw.value.i64 as f64,
            vk::PipelineExecutableStatisticFormatKHR::UINT64 => raw.value.u64 as f64,
            _ => raw.value.f64,
        }
    };
    let name = raw.name_as_c_str().map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned());
    Statistic { name, value }
}
