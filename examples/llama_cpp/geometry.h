/*
 * geometry.h - describes a llama.cpp model to libtria, from what an observer saw and the model's metadata.
 */
#ifndef EXAMPLE_GEOMETRY_H
#define EXAMPLE_GEOMETRY_H

#include "engine.h"
#include "observer.h"

#include <tria/model.h>

/*
 * Runs one token so that the observer, which must be the engine's callback, sees every layer once, empties
 * the cache again, and makes the description. Refuses, naming the reason, what this example does not
 * handle: recurrent, hybrid and sliding-window models, kinds of RoPE other than NORM and NEOX, keys that
 * are transformed after RoPE otherwise than by a Hadamard matrix (which llama.cpp does for quantised
 * caches), caches the CPU cannot read.
 */
tria_status geometry_probe(engine *e, observer *o, tria_model **model, tria_error *error);

#endif
