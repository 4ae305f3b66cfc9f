/* Records the frames that pass a port in classic pcap files. Every frame is written at once, so that a file is complete
 * at any time; the host writes the file's header. */
#include <errno.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

static void end(int *file) {
    close(*file);
    *file = -1;
}

/* Writes a record. One that cannot be written completely is removed and ends the file: the disk is full. */
void ss_pcap(struct ss_port *port, int *file, const struct ss_buf *buf) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint32_t head[4] = {(uint32_t)now.tv_sec, (uint32_t)(now.tv_nsec / 1000), buf->len, buf->len};
    struct iovec record[2] = {{head, sizeof head}, {buf->data, buf->len}};
    ssize_t written = writev(*file, record, 2);
    if (written == (ssize_t)(sizeof head + buf->len)) return;
    off_t at = written > 0 ? lseek(*file, 0, SEEK_CUR) : 0;
    if (at > written && ftruncate(*file, at - written)) { /* if this fails, too, the last record stays cut short */
    }
    end(file);
    ss_post(port->device, SS_EVENT_PCAP_ENDED, port->number, NULL, 0);
}

void ss_pcap_close(struct ss_port *port) {
    if (port->pcap_in >= 0) end(&port->pcap_in);
    if (port->pcap_out >= 0) end(&port->pcap_out);
}

/* Records the frames that come in and leave by a port from now on; the port owns the files, also after an error. */
SS_API int ss_port_pcap(struct ss_device *device, uint32_t number, int32_t in, int32_t out) {
    ss_thread_lock(device->thread);
    struct ss_port *port = number < SS_MAX_PORTS ? device->ports[number] : NULL;
    bool used = port && port->kind != SS_PORT_UNUSED;
    if (used) {
        ss_pcap_close(port);
        port->pcap_in = in;
        port->pcap_out = out;
    }
    ss_thread_unlock(device->thread);
    if (!used) {
        close(in);
        close(out);
    }
    return used ? 0 : -ENOENT;
}
