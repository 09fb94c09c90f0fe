/* Recording, for dispatch and tensors. */
#ifndef PK_PROGRAM_H
#define PK_PROGRAM_H

#include "core/core.h"

/* Appends a checked call, whose outputs exist, to the program that is being recorded. */
pk_status pk_program_record(pk_program *program, const pk_call *call);

#endif
