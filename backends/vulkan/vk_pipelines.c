/* vk_pipelines.c - the pipelines a plan needs; shaders come as SPIR-V words made at build time. */
#include "vk_plan.h"

#include "spirv.h"

#include <stddef.h>

static const struct {
    const uint32_t *words;
    size_t size;
} modules[VK_N_SHADERS] = {
#define VK_MODULE(name) [VK_SHADER_##name] = {spirv_##name, sizeof(spirv_##name)},
    VK_SHADERS(VK_MODULE)
#undef VK_MODULE
};

static void list_needed(const vk_context *context, bool needed[VK_N_SHADERS])
{
    const tria_v1_plan *plan = context->plan;
    const vk_device *device = context->device;
    const bool subgroup = device->subgroup_arithmetic && device->workgroup >= device->subgroup_size;
    needed[VK_SHADER_protect] = true;
    needed[VK_SHADER_stats] = true;
    needed[VK_SHADER_group] = true;
    needed[VK_SHADER_aggregate] = true;
    needed[VK_SHADER_pool] = plan->params->pool_radius > 0;
    needed[VK_SHADER_select] = !subgroup;
    needed[VK_SHADER_select_subgroup] = subgroup;
    needed[VK_SHADER_moves] = true;
    needed[VK_SHADER_repack_word] = true;
    needed[VK_SHADER_repack_half] = device->storage_16bit;
    needed[VK_SHADER_repack_byte] = device->storage_8bit;
    needed[VK_SHADER_repack_masked] = !device->storage_16bit || !device->storage_8bit;
    for (int32_t l = 0; l < plan->n_layers; l++) {
        if (plan->layers[l].n_kv_heads > 0) {
            needed[VK_SHADER_score_f32 + plan->layers[l].k.dtype] = true;
        }
    }
}

static tria_status create_pipeline(vk_context *context, vk_shader shader, tria_error *error)
{
    vk_device *device = context->device;
    const uint32_t constants[2] = {device->workgroup, context->tile_words};
    static const VkSpecializationMapEntry entries[2] = {{0, 0, sizeof(uint32_t)},
                                                        {1, sizeof(uint32_t), sizeof(uint32_t)}};
    const VkSpecializationInfo specialization = {shader >= VK_SHADER_score_f32 ? 2 : 1, entries,
                                                 sizeof(constants), constants};
    const VkShaderModuleCreateInfo module_info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                                  .codeSize = modules[shader].size,
                                                  .pCode = modules[shader].words};
    VkShaderModule module;
    VK_CHECK(device->vk.CreateShaderModule(device->handle, &module_info, NULL, &module),
             "vkCreateShaderModule");
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main",
                  .pSpecializationInfo = &specialization},
        .layout = context->pipeline_layout};
    const VkResult result = device->vk.CreateComputePipelines(device->handle, device->cache, 1, &info, NULL,
                                                              &context->pipelines[shader]);
    device->vk.DestroyShaderModule(device->handle, module, NULL);
    VK_CHECK(result, "vkCreateComputePipelines");
    return TRIA_OK;
}

static tria_status create_set_layout(vk_device *device, uint32_t n, VkDescriptorSetLayout *layout,
                                     tria_error *error)
{
    VkDescriptorSetLayoutBinding bindings[5];
    for (uint32_t i = 0; i < n; i++) {
        bindings[i] = (VkDescriptorSetLayoutBinding){.binding = i,
                                                     .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                                     .descriptorCount = 1,
                                                     .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    }
    const VkDescriptorSetLayoutCreateInfo info = {.sType =
                                                      VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                                  .bindingCount = n,
                                                  .pBindings = bindings};
    VK_CHECK(device->vk.CreateDescriptorSetLayout(device->handle, &info, NULL, layout),
             "vkCreateDescriptorSetLayout");
    return TRIA_OK;
}

tria_status vk_pipelines_create(vk_context *context, tria_error *error)
{
    vk_device *device = context->device;
    bool needed[VK_N_SHADERS] = {false};
    VK_TRY(create_set_layout(device, 5, &context->main_layout, error));
    VK_TRY(create_set_layout(device, 2, &context->tensor_layout, error));
    const VkDescriptorSetLayout layouts[2] = {context->main_layout, context->tensor_layout};
    const VkPushConstantRange range = {VK_SHADER_STAGE_COMPUTE_BIT, 0, 128}; /* every device has as many */
    const VkPipelineLayoutCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                             .setLayoutCount = 2,
                                             .pSetLayouts = layouts,
                                             .pushConstantRangeCount = 1,
                                             .pPushConstantRanges = &range};
    VK_CHECK(device->vk.CreatePipelineLayout(device->handle, &info, NULL, &context->pipeline_layout),
             "vkCreatePipelineLayout");
    context->tile_words = device->shared_words;
    list_needed(context, needed);
    for (int shader = 0; shader < VK_N_SHADERS; shader++) {
        if (needed[shader]) {
            VK_TRY(create_pipeline(context, (vk_shader)shader, error));
        }
    }
    return TRIA_OK;
}

void vk_pipelines_destroy(vk_context *context)
{
    const vk_device *device = context->device;
    for (int shader = 0; shader < VK_N_SHADERS; shader++) {
        device->vk.DestroyPipeline(device->handle, context->pipelines[shader], NULL);
    }
    device->vk.DestroyPipelineLayout(device->handle, context->pipeline_layout, NULL);
    device->vk.DestroyDescriptorSetLayout(device->handle, context->tensor_layout, NULL);
    device->vk.DestroyDescriptorSetLayout(device->handle, context->main_layout, NULL);
}
