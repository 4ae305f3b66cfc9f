/* What NCCL asks of a network plugin (NCCL 2.30, versions 11 and 12 of the interface, which differ only in how a device
 * is described): a library libnccl-net-NAME.so with the tables ncclNetPlugin_vN and ncclCollNetPlugin_vN. The fields
 * and their order are NCCL's (github.com/NVIDIA/nccl, src/include/plugin/net); only what is used here has a type of its
 * own. NCCL looks at the second table only in a library that has the first. */
#ifndef INART_NCCL_INTERFACE_H
#define INART_NCCL_INTERFACE_H

#include <stddef.h>
#include <stdint.h>

enum {
    NCCL_SUCCESS = 0,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6
};
enum { NCCL_FLOAT16 = 6, NCCL_FLOAT32 = 7, NCCL_BFLOAT16 = 9 };
enum { NCCL_SUM = 0 };
enum { NCCL_PTR_HOST = 1 };
enum { NCCL_LOG_WARN = 2, NCCL_LOG_INFO = 3 };
#define NCCL_LOG_NET 16UL
#define NCCL_UNDEFINED (-1)
#define NCCL_HANDLE_BYTES 128
#define NCCL_MOST_REQUESTS 32
#define NCCL_MOST_BYTES (1L << 40)

typedef int nccl_result;
typedef void (*nccl_logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

#define NCCL_DEVICE(most_parts)                        \
    char *name;                                        \
    char *pci_path;                                    \
    uint64_t guid;                                     \
    int pointers, registration_is_global, force_flush; \
    int mbps, port;                                    \
    float latency;                                     \
    int most_connections, most_receives;               \
    int offload, offload_version;                      \
    struct {                                           \
        int number, devices[most_parts];               \
    } parts;                                           \
    size_t most_bytes, most_collective_bytes;          \
    int most_in_request;

struct nccl_device_v11 {
    NCCL_DEVICE(4)
};

struct nccl_device_v12 {
    NCCL_DEVICE(8)
    int16_t rail, plane;
};

/* Point to point. `device_v` is struct nccl_device_v11 or _v12. */
struct nccl_net {
    const char *name;
    nccl_result (*init)(void **context, uint64_t communicator, void *config, nccl_logger logger, void *profiler);
    nccl_result (*devices)(int *number);
    nccl_result (*get_properties)(int device, void *device_v);
    nccl_result (*listen)(void *context, int device, void *handle, void **listening);
    nccl_result (*connect)(void *context, int device, void *handle, void **connection, void **offload);
    nccl_result (*accept)(void *listening, void **connection, void **offload);
    nccl_result (*register_memory)(void *connection, void *data, size_t size, int type, void **registered);
    nccl_result (*register_dmabuf)(void *connection, void *data, size_t size, int type, uint64_t offset, int descriptor,
                                   void **registered);
    nccl_result (*deregister)(void *connection, void *registered);
    nccl_result (*send)(void *connection, void *data, size_t size, int tag, void *registered, void *profiled,
                        void **request);
    nccl_result (*receive)(void *connection, int number, void **data, size_t *sizes, int *tags, void **registered,
                           void **profiled, void **request);
    nccl_result (*flush)(void *connection, int number, void **data, int *sizes, void **registered, void **request);
    nccl_result (*test)(void *request, int *done, int *sizes);
    nccl_result (*close_send)(void *connection);
    nccl_result (*close_receive)(void *connection);
    nccl_result (*close_listen)(void *listening);
    nccl_result (*device_memory)(void *connection, void *registered, void **pointer);
    nccl_result (*receive_consumed)(void *connection, int number, void *request);
    nccl_result (*make_device)(int *device, void *parts);
    nccl_result (*finalize)(void *context);
    nccl_result (*set_attributes)(void *context, void *attributes);
};

/* Collectives. Those that are NULL here NCCL does another way. */
struct nccl_collnet {
    const char *name;
    nccl_result (*init)(void **context, uint64_t communicator, nccl_logger logger);
    nccl_result (*devices)(int *number);
    nccl_result (*get_properties)(int device, void *device_v);
    nccl_result (*listen)(void *context, int device, void *handle, void **listening);
    nccl_result (*connect)(void *handles[], int ranks, int rank, void *listening, void **group);
    nccl_result (*reduce_support)(int type, int operator, int * supported);
    nccl_result (*register_memory)(void *group, void *data, size_t size, int type, void **registered);
    nccl_result (*register_dmabuf)(void *group, void *data, size_t size, int type, uint64_t offset, int descriptor,
                                   void **registered);
    nccl_result (*deregister)(void *group, void *registered);
    nccl_result (*allreduce)(void *group, void *from, void *to, size_t elements, int type, int operator,
                             void * from_registered, void *to_registered, void **request);
    void *allgather, *reduce_scatter;
    nccl_result (*flush)(void *group, void *data, int size, void *registered, void **request);
    nccl_result (*test)(void *request, int *done, int *size);
    nccl_result (*close_group)(void *group);
    nccl_result (*close_listen)(void *listening);
    nccl_result (*make_device)(int *device, void *parts);
    nccl_result (*finalize)(void *context);
};

/* The one device, as nccl_sockets.c describes it. */
nccl_result inart_nccl_devices(int *number);
nccl_result inart_nccl_properties_v11(int device, void *found);
nccl_result inart_nccl_properties_v12(int device, void *found);
nccl_result inart_nccl_register(void *connection, void *data, size_t size, int type, void **registered);
nccl_result inart_nccl_deregister(void *connection, void *registered);

#endif
