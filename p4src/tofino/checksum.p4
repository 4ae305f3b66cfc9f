// The ingress deparser, which computes the IPv4 header checksum of ordinary traffic anew (hdr.ipv4); the parser has
// verified the one of arrival. Aggregation packets keep their IPv4 header as it is (hdr.outer); their hosts check it.
//
// Limit: headers without options; packets with options do not leave the switch (route.p4).
#ifndef INART_CHECKSUM_P4
#define INART_CHECKSUM_P4

control InartIngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                             in ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md) {
    Checksum() ipv4_checksum;

    apply {
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.hdr_checksum = ipv4_checksum.update({
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.diffserv, hdr.ipv4.total_len,
                hdr.ipv4.identification, hdr.ipv4.flags_frag_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src_addr,
                hdr.ipv4.dst_addr
            });
        }
        packet.emit(hdr.ethernet);
        packet.emit(hdr.outer);
        packet.emit(hdr.inart);
#ifdef INART_FOLD
        packet.emit(hdr.fold);
#endif
        packet.emit(hdr.first);
        packet.emit(hdr.second);
        packet.emit(hdr.tail);
        packet.emit(hdr.ipv4);
    }
}

#endif
