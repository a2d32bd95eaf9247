// The list of all optimizers. To add one, include its header and, if it has no NAME.cc (lion.h), add its class below.
//
// The build and the installed headers follow this list. The build finds a NAME.cc beside NAME.h by itself.
#pragma once

#include "rondo/optim/adafactor.h"
#include "rondo/optim/adagrad.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/lamb.h"
#include "rondo/optim/lion.h"
#include "rondo/optim/muon.h"
#include "rondo/optim/rmsprop.h"
#include "rondo/optim/sgd.h"

// Formulas are kernel code: optimizers.cc compiles the formulas of these classes, with X(Class) for each.
#define RONDO_FORMULA_OPTIMIZERS(X) \
  X(Adagrad)                        \
  X(Lion)                           \
  X(RMSprop)                        \
  X(SGD)
