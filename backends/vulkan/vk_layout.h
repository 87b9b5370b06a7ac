/*
 * vk_layout.h - where everything of a plan lies in the buffers the shaders see, and the plan's constants.
 */
#ifndef TRIA_VK_LAYOUT_H
#define TRIA_VK_LAYOUT_H

#include "vk_device.h"

#include "plan_words.h"

typedef struct vk_layout {
    uint32_t header[PLAN_HEADER_WORDS]; /* the first words of the constants */
    /* sizes in words */
    uint32_t constants;
    uint32_t inputs;
    uint32_t inputs_fixed; /* behind them: prompts, page tables, positions of an event */
    uint32_t raw;
    uint32_t work;
    uint32_t report; /* the leading part of the workspace that the host reads back */
    uint32_t keep;
    uint32_t upload;
    uint32_t upload_keep; /* in the upload buffer: counts and rows of keep sets, or final scores */
    uint32_t readback;
    uint32_t readback_keep; /* in the readback buffer: rows of keep sets */
    int32_t max_pages;      /* entries of a page table */
    uint32_t *rotation;     /* [n_layers] offset in the constants, NONE for keys that are not raw */
} vk_layout;

/* Everything but `rotation`, which is only filled in when it is not NULL. Errors: UNSUPPORTED (sizes
 * beyond 32 bits). */
tria_status vk_layout_init(vk_layout *layout, const tria_v1_plan *plan, tria_error *error);
/* Writes the constants. */
void vk_constants_fill(const vk_layout *layout, const tria_v1_plan *plan, const tria_v1_host *host,
                       void *constants);

/* Mirrors of the core's rules. */
bool vk_is_pooled(const tria_v1_plan *plan); /* modes that combine layers */
int32_t vk_first_slot(const tria_v1_plan *plan, int32_t set);

#endif
