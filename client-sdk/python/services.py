"""Asks every node what it serves (server reflection) and whether it does (health). Started by run.py."""
import argparse
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--stubs", required=True)
parser.add_argument("observers", nargs="+")
args = parser.parse_args()
sys.path.insert(0, args.stubs)

import grpc  # noqa: E402
from google.protobuf import descriptor_pb2  # noqa: E402
from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from grpc_reflection.v1alpha import reflection_pb2  # noqa: E402
from quorate.v1 import directory_pb2, directory_pb2_grpc  # noqa: E402

DEADLINE = time.monotonic() + 60
# Both versions carry the same messages; grpcio has stubs for the older one only.
REFLECTIONS = ["grpc.reflection.v1", "grpc.reflection.v1alpha"]
HEALTH = "grpc.health.v1.Health"
LOG = "quorate.v1.Log"
DIRECTORY = ["quorate.v1.Directory", "quorate.v1.Admin"]


def reflect(channel, version, **question):
    """The answer to one question by server reflection."""
    call = channel.stream_stream(
        f"/{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    answer = next(iter(call(iter([reflection_pb2.ServerReflectionRequest(**question)]), timeout=10)))
    assert answer.WhichOneof("message_response") != "error_response", answer
    return answer


def methods(channel, version, service):
    """Names of a service's methods, from the descriptors that the server hands out."""
    answer = reflect(channel, version, file_containing_symbol=service)
    for blob in answer.file_descriptor_response.file_descriptor_proto:
        file = descriptor_pb2.FileDescriptorProto.FromString(blob)
        for found in file.service:
            if f"{file.package}.{found.name}" == service:
                return {method.name for method in found.method}
    raise SystemExit(f"{version} does not describe {service}")


def serving(channel, service):
    """Waits until the health service says that this one serves."""
    health = health_pb2_grpc.HealthStub(channel)
    while True:
        try:
            status = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5).status
            if status == health_pb2.HealthCheckResponse.SERVING:
                return
        except grpc.RpcError as error:
            status = error.code()
        if time.monotonic() > DEADLINE:
            raise SystemExit(f"{service} does not serve: {status}")
        time.sleep(0.1)


def check(kind, address, services, example):
    """One node: its services by both reflections, the methods of one of them, health."""
    with grpc.insecure_channel(address) as channel:
        for version in REFLECTIONS:
            answer = reflect(channel, version, list_services="")
            listed = {service.name for service in answer.list_services_response.service}
            missing = {*services, HEALTH} - listed
            assert not missing, f"{kind} {address}, {version}: {missing} missing in {listed}"
            assert example <= methods(channel, version, services[0]), f"{kind} {address}, {version}"
        for service in ["", *services]:
            serving(channel, service)
    print(f"{kind} {address}: reflection and health of {', '.join(services)}")


def data_nodes():
    """Addresses of the data nodes, from the first observer."""
    with grpc.insecure_channel(args.observers[0]) as channel:
        answer = directory_pb2_grpc.DirectoryStub(channel).ListNodes(directory_pb2.ListNodesRequest(), timeout=10)
    return [node.address for node in answer.nodes if node.role == "server"]


def main():
    nodes = data_nodes()
    assert len(nodes) == 3, nodes
    for address in nodes:
        check("data node", address, [LOG], {"Publish", "PublishOnce", "Fetch"})
    for address in args.observers:
        check("observer", address, DIRECTORY, {"WatchRoutes", "DescribePartition", "ListNodes"})


main()
