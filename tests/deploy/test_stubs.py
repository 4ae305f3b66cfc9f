"""Clients and server have the methods of inart.proto, with its messages. mypy holds that the code is as annotated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import grpc
import pytest

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.stubs import METHODS, SERVICE, ControllerStub
from controlplane.service.controller import Controller

OF_PROTO = pb.DESCRIPTOR.services_by_name["Controller"]


def test_the_table_of_methods_is_that_of_the_proto_file():
    table = {method: (request.DESCRIPTOR, reply.DESCRIPTOR) for method, request, reply in METHODS.values()}
    assert table == {method.name: (method.input_type, method.output_type) for method in OF_PROTO.methods}
    assert OF_PROTO.full_name == SERVICE


@pytest.mark.parametrize("name", METHODS)
def test_client_and_server_have_each_method_with_its_messages(name):
    method, request, reply = METHODS[name]
    stream = OF_PROTO.methods_by_name[method].server_streaming
    assert get_type_hints(getattr(Controller, name)) == {
        "request": request,
        "context": grpc.ServicerContext,
        "return": Iterator[reply] if stream else reply,
    }
    assert get_args(get_type_hints(ControllerStub)[name])[1] is (Any if stream else reply)
