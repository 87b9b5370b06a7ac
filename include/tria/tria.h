/* tria/tria.h - everything an engine needs. */
#ifndef TRIA_TRIA_H
#define TRIA_TRIA_H

#include "tria/accumulator.h"
#include "tria/backend.h"
#include "tria/base.h"
#include "tria/calibration.h"
#include "tria/kv_view.h"
#include "tria/layouts.h"
#include "tria/model.h"
#include "tria/plan.h"
#include "tria/sequence.h"
#include "tria/trace.h"

#endif
