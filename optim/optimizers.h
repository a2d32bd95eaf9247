// The optimizers: the one list of them. A new one is an #include of its file and, if it is that one file (lion.h), its
// name below.
//
// The build and the installed headers follow this list. An optimizer with code of its own has a NAME.cc beside its
// NAME.h, which the build finds.
#pragma once

#include "rondo/optim/adafactor.h"
#include "rondo/optim/adagrad.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/lamb.h"
#include "rondo/optim/lion.h"
#include "rondo/optim/muon.h"
#include "rondo/optim/rmsprop.h"
#include "rondo/optim/sgd.h"

// Formulas are kernel code: optimizers.cc compiles those of these classes, for X(Class).
#define RONDO_FORMULA_OPTIMIZERS(X) \
  X(Adagrad)                        \
  X(Lion)                           \
  X(RMSprop)                        \
  X(SGD)
