/* rows.h - where a row lies, how many there are, and at which positions; what a score may be. */
#ifndef TRIA_CUDA_ROWS_H
#define TRIA_CUDA_ROWS_H

#include "args.h"
#include "port.h"
#include "tria/backend_v1.h"

namespace tria_gpu
{
PORT_DEVICE bool is_finite(float x)
{
    return (port_float_bits(x) & 0x7f800000u) != 0x7f800000u;
}
PORT_DEVICE float not_a_number()
{
    return port_bits_float(0x7fc00000u);
}

struct RowPlace {
    int64_t page;
    int64_t token;
};

PORT_DEVICE RowPlace place_of(const int32_t *page_table, int tokens_per_page, int row)
{
    if (page_table == nullptr) {
        return RowPlace{0, row};
    }
    return RowPlace{port_global(page_table)[row / tokens_per_page], row % tokens_per_page};
}

/* Bytes from the tensor's first element to the row of a head. */
PORT_DEVICE int64_t row_offset(const Tensor &tensor, const RowPlace &place, int head)
{
    return place.page * tensor.page_stride + place.token * tensor.token_stride + head * tensor.head_stride;
}

PORT_DEVICE int64_t scale_offset(const Tensor &tensor, const RowPlace &place, int head)
{
    return place.page * tensor.scale_page_stride + place.token * tensor.scale_token_stride +
           head * tensor.scale_head_stride;
}

/* What multiplies the elements of a row. */
PORT_DEVICE float row_scale(const Tensor &tensor, const unsigned char *scales, const RowPlace &place,
                            int head)
{
    switch (tensor.scale_kind) {
    case TRIA_SCALE_TENSOR:
        return tensor.scale;
    case TRIA_SCALE_HEAD:
        return port_load<float>(port_global(scales), head * tensor.scale_head_stride);
    case TRIA_SCALE_ROW:
        return port_load<float>(port_global(scales), scale_offset(tensor, place, head));
    default:
        return 1.0f;
    }
}

/* N of a slot; what the caller's device memory says is not trusted. */
PORT_DEVICE int row_count(const Plan &plan, const Event &event, int slot)
{
    const int n = port_global(event.rows)[slot];
    return n < 0 ? 0 : n < plan.max_rows ? n : plan.max_rows;
}

PORT_DEVICE gptr<int32_t> position_table(const Event &event, const Kv &kv)
{
    return port_global(event.positions) + (kv.layer * event.layer_stride + kv.head * event.head_stride);
}

PORT_DEVICE int position_of(const Event &event, const Kv &kv, int row)
{
    return event.positions == nullptr ? row : (int)position_table(event, kv)[row];
}
} // namespace tria_gpu

#endif
