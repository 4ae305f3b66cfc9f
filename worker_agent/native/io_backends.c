/* The back ends by number (enum in io.h). */
#include "io.h"

extern const struct io_backend io_udp_backend, io_raw_backend;

const struct io_backend *const io_backends[INART_BACKENDS] = {
    [INART_UDP] = &io_udp_backend, [INART_RAW] = &io_raw_backend};
