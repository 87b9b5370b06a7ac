/*
 * fold_kernel.h - the query side of an event (specification, section 2): phases from t, then the weights
 * that the score kernel multiplies keys by. On the device, so that t may lie in device memory and a
 * captured event can be replayed; a few thousand values in all.
 */
#ifndef TRIA_CUDA_FOLD_KERNEL_H
#define TRIA_CUDA_FOLD_KERNEL_H

#include "args.h"
#include "port.h"

namespace tria_gpu
{
/* cos and sin of n*w in double, 0 <= n < 2^33: the product is formed exactly in two parts and reduced by
 * multiples of pi/2 in three; on [-pi/4, pi/4] the Taylor series below are exact to double precision. */
PORT_DEVICE void phase(double n, double w, double *cosine, double *sine)
{
    const double product = n * w;
    const double rest = fma(n, w, -product);
    const double turns = rint(product * 0.63661977236758134308); /* quarters: 2/pi */
    double x = fma(-turns, 1.57079632679489655800, product);
    x = fma(-turns, 6.12323399573676603587e-17, x);
    x = fma(-turns, -1.49738490485916983e-33, x) + rest;
    const double y = x * x;
    double s = -1.0 / 121645100408832000.0; /* 1/19! */
    s = fma(s, y, 1.0 / 355687428096000.0); /* 1/17! */
    s = fma(s, y, -1.0 / 1307674368000.0);  /* 1/15! */
    s = fma(s, y, 1.0 / 6227020800.0);      /* 1/13! */
    s = fma(s, y, -1.0 / 39916800.0);       /* 1/11! */
    s = fma(s, y, 1.0 / 362880.0);          /* 1/9! */
    s = fma(s, y, -1.0 / 5040.0);           /* 1/7! */
    s = fma(s, y, 1.0 / 120.0);             /* 1/5! */
    s = fma(s, y, -1.0 / 6.0);              /* 1/3! */
    s = fma(s * y, x, x);
    double c = 1.0 / 2432902008176640000.0;   /* 1/20! */
    c = fma(c, y, -1.0 / 6402373705728000.0); /* 1/18! */
    c = fma(c, y, 1.0 / 20922789888000.0);    /* 1/16! */
    c = fma(c, y, -1.0 / 87178291200.0);      /* 1/14! */
    c = fma(c, y, 1.0 / 479001600.0);         /* 1/12! */
    c = fma(c, y, -1.0 / 3628800.0);          /* 1/10! */
    c = fma(c, y, 1.0 / 40320.0);             /* 1/8! */
    c = fma(c, y, -1.0 / 720.0);              /* 1/6! */
    c = fma(c, y, 1.0 / 24.0);                /* 1/4! */
    c = fma(c, y, -0.5);
    c = fma(c, y, 1.0);
    const int quarter = (int)((int64_t)turns & 3);
    *cosine = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
    *sine = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
}

/* Blocks: (frequencies, layers, events). Layers with the same frequencies share their first one's phases.
 */
PORT_KERNEL(block_threads) phase_kernel(Call call)
{
    const Plan &plan = call.plan;
    const int l = port_block_y();
    const Event event = port_global(call.events)[port_block_z()];
    const Layer layer = port_global(plan.layers)[l];
    const int f = port_block_x() * port_threads() + port_thread();
    if (layer.phase_layer != l || f >= layer.shape.n_freq) {
        return;
    }
    gptr<double> out = port_global(event.phases) + layer.phases;
    const double t = (double)*port_global(event.t);
    const double w = port_global(plan.inv_freq)[layer.frequencies + f];
    double sum_re = 0.0;
    double sum_im = 0.0;
    for (int o = 0; o < plan.n_offsets; o++) {
        double re;
        double im;
        phase(t + (double)((int64_t)1 << o), w, &re, &im);
        sum_re += re;
        sum_im += im;
        if (plan.offsets_max) {
            out[2 * ((int64_t)o * layer.shape.n_freq + f)] = re;
            out[2 * ((int64_t)o * layer.shape.n_freq + f) + 1] = im;
        }
    }
    if (!plan.offsets_max) {
        out[2 * (int64_t)f] = sum_re / plan.n_offsets;
        out[2 * (int64_t)f + 1] = sum_im / plan.n_offsets;
    }
}

/* Blocks: (pieces of a chunk's weights, chunks, events). One weight, complex, per thread. */
PORT_KERNEL(block_threads) weight_kernel(Call call)
{
    const Plan &plan = call.plan;
    const Event event = port_global(call.events)[port_block_z()];
    const Chunk *at = plan.chunks + port_block_y();
    const Chunk chunk = *port_global(at);
    const Layer scored = port_global(plan.layers)[chunk.layer];
    const int per_pass = scored.shape.n_freq * columns;
    const int i = port_block_x() * port_threads() + port_thread();
    if (i >= per_pass * plan.n_passes) {
        return;
    }
    const int column = i % columns;
    const int f = i % per_pass / columns;
    const int q = port_global(at->query)[plan.offsets_max ? 0 : column];
    double re = 0.0;
    double im = 0.0;
    if (q >= 0 && !plan.disable_trig) {
        const Query query = port_global(plan.queries)[q];
        const Layer layer = port_global(plan.layers)[query.layer];
        /* columns beyond the last offset repeat it: the maximum does not mind */
        int offset = plan.offsets_max ? i / per_pass * columns + column : 0;
        offset = plan.offsets_max && offset >= plan.n_offsets ? plan.n_offsets - 1 : offset;
        gptr<const double> factor = port_global((const double *)event.phases) + layer.phases +
                                    2 * ((int64_t)offset * layer.shape.n_freq + f);
        const double g = port_global(plan.freq_scale_sq)[layer.frequencies + f];
        const double q_re = (double)port_global(plan.q_real)[query.stats + f];
        const double q_im = (double)port_global(plan.q_imag)[query.stats + f];
        re = g * (q_re * factor[0] - q_im * factor[1]);
        im = g * (q_re * factor[1] + q_im * factor[0]);
    }
    gptr<float> out = port_global(event.lin) + chunk.lin + 2 * (int64_t)(i - column);
    out[column] = (float)re;
    out[columns + column] = (float)im;
}
} // namespace tria_gpu

#endif
