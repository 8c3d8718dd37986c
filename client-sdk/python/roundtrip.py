"""Publishes, repeats and fetches records in the clear. Started by run.py with the generated stubs."""
import argparse
import sys
import time
import uuid

parser = argparse.ArgumentParser()
parser.add_argument("--stubs", required=True)
parser.add_argument("--topic", required=True)
parser.add_argument("observers", nargs="+")
args = parser.parse_args()
sys.path.insert(0, args.stubs)

import grpc  # noqa: E402
from quorate.v1 import common_pb2, directory_pb2, directory_pb2_grpc, log_pb2, log_pb2_grpc  # noqa: E402

DEADLINE = time.monotonic() + 60
ELSEWHERE = {common_pb2.NOT_LEADER, common_pb2.NO_LEADER, common_pb2.FENCED, common_pb2.HANDOFF, common_pb2.BUSY}


def routes():
    """The first full picture that any observer gives."""
    for address in args.observers:
        with grpc.insecure_channel(address) as channel:
            request = directory_pb2.WatchRoutesRequest(protocol_version=1, client_id="python")
            try:
                return next(iter(directory_pb2_grpc.DirectoryStub(channel).WatchRoutes(request, timeout=5)))
            except (grpc.RpcError, StopIteration) as error:
                print(f"observer {address}: {error}", file=sys.stderr)
    raise SystemExit("no observer gave the routes")


def leader(partition):
    """Address of the partition's leader, and the topic's full name; waits for both."""
    while time.monotonic() < DEADLINE:
        picture = routes()
        nodes = {node.id: node.address for node in picture.nodes}
        for topic in picture.topics:
            if topic.name in (args.topic, f"default/{args.topic}"):
                route = next(route for route in topic.partitions if route.partition == partition)
                if route.leader_node in nodes:
                    return nodes[route.leader_node], topic.name, picture.cluster_id
        time.sleep(0.2)
    raise SystemExit(f"{args.topic}/{partition} has no leader")


def publish(address, name, cluster, records, stream):
    """One publish, by stream or by unary call: a receipt, or an error."""
    request = log_pb2.PublishRequest(
        tag=7,
        partition=log_pb2.Partition(topic=name, partition=0),
        records=log_pb2.Records(records=records),
        cluster_id=cluster,
        client_id="python",
    )
    with grpc.insecure_channel(address) as channel:
        log = log_pb2_grpc.LogStub(channel)
        if stream:
            response = next(iter(log.Publish(iter([request]), timeout=20)))
        else:
            response = log.PublishOnce(request, timeout=20)
    assert response.tag == 7, response
    return response


def commit(records, stream):
    """Publishes until the leader has committed; safe to repeat, because every record has an idempotency key."""
    while time.monotonic() < DEADLINE:
        address, name, cluster = leader(0)
        try:
            response = publish(address, name, cluster, records, stream)
        except grpc.RpcError as error:
            print(f"{address}: {error.code()}: {error.details()}; again", file=sys.stderr)
            time.sleep(0.2)
            continue
        if response.WhichOneof("result") == "receipt":
            return response.receipt
        assert response.error.reason in ELSEWHERE, response.error
        time.sleep(0.2)
    raise SystemExit("nothing was committed within a minute")


def fetch(offset, wanted, run):
    """Records of this run from an offset on, in the clear; others may publish in between."""
    read = []
    while len(read) < wanted and time.monotonic() < DEADLINE:
        address, name, _ = leader(0)
        request = log_pb2.FetchRequest(
            partition=log_pb2.Partition(topic=name, partition=0), offset=offset, max_wait_ms=1000, as_records=True
        )
        with grpc.insecure_channel(address) as channel:
            answer = log_pb2_grpc.LogStub(channel).Fetch(request, timeout=20)
        read.extend(r for r in answer.records.records if r.idempotency_key.startswith(run))
        offset = answer.next_offset
    return read[:wanted]


def main():
    # A client that mixes languages must choose the partition as the others do: xxh3_64(record key) mod 4096, then the
    # topic's slot map. This one writes to partition 0 only.
    run = uuid.uuid4().hex
    records = [
        log_pb2.Record(
            key=b"python",
            value=f"message {n}".encode(),
            headers=[log_pb2.Header(name="n", value=str(n).encode())],
            idempotency_key=f"{run}:{n}".encode(),
        )
        for n in range(5)
    ]
    first = commit(records[:3], stream=True)
    assert (first.count, len(first.durable_on) >= 2) == (3, True), first
    second = commit(records[3:], stream=False)
    assert second.count == 2 and second.base_offset > first.base_offset, second
    repeated = commit(records[:3], stream=False)
    originals = [e.duplicate_of for e in repeated.exceptions]
    assert originals == [first.base_offset + n for n in range(3)], repeated

    read = fetch(first.base_offset, 5, run.encode())
    assert [r.value for r in read] == [r.value for r in records], read
    assert [r.key for r in read] == [b"python"] * 5, read
    assert [h.value for r in read for h in r.headers] == [str(n).encode() for n in range(5)], read
    assert all(a.offset < b.offset for a, b in zip(read, read[1:])), read

    try:
        fetch(1 << 40, 1, run.encode())
        raise SystemExit("an offset out of range was served")
    except grpc.RpcError as error:
        print(f"offset out of range: {error.code().name}: {error.details()}")
    print(f"python: 5 records committed, 3 repeats recognised, 5 read back from offset {first.base_offset}")


main()
