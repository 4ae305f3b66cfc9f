// The IPv4 header checksum of ordinary traffic: verified on arrival (a bad one sets checksum_error), computed anew on
// departure. Aggregation packets and bridged frames keep their IPv4 header as it is; their hosts check it.
//
// Limit: headers without options; packets with options do not leave the switch (route.p4).
#ifndef INART_CHECKSUM_P4
#define INART_CHECKSUM_P4

#define INART_IPV4_FIELDS { \
    hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.diffserv, hdr.ipv4.total_len, hdr.ipv4.identification, \
    hdr.ipv4.flags, hdr.ipv4.frag_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, \
    hdr.ipv4.src_addr, hdr.ipv4.dst_addr }

control InartVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && !meta.ours, INART_IPV4_FIELDS, hdr.ipv4.hdr_checksum, HashAlgorithm.csum16);
    }
}

control InartComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && !meta.ours && hdr.ethernet.dst_addr[40:40] == 0,
                        INART_IPV4_FIELDS, hdr.ipv4.hdr_checksum, HashAlgorithm.csum16);
    }
}

#endif
