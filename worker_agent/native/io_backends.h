/* The back ends by number (enum in io.h). */
#ifndef INART_IO_BACKENDS_H
#define INART_IO_BACKENDS_H

#include "io_raw.h"
#include "io_udp.h"

static const struct io_backend *const io_backends[INART_BACKENDS] = {[INART_UDP] = &udp_backend, [INART_RAW] = &raw_backend};

#endif
