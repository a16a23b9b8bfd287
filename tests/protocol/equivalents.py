"""Mutants that change nothing that anyone could see, each with the reason."""

from __future__ import annotations

from typing import NamedTuple


class Equivalent(NamedTuple):
    """A mutant: its file, its function, the line as it is and as it becomes, and why that makes no difference."""

    file: str
    function: str
    old: str
    new: str
    reason: str


EQUIVALENT = (
    Equivalent(
        "core/capacity.py",
        "Capacity.__init__",
        "self.counts: Ints = np.zeros(0, np.int64)",
        "self.counts: Ints = np.zeros(1, np.int64)",
        "the first refresh makes them anew",
    ),
    Equivalent(
        "core/census.py",
        "Census.add",
        "if change < 0 and not carriers.any():",
        "if change <= 0 and not carriers.any():",
        "nobody counts a pod in by nothing",
    ),
    Equivalent(
        "core/cluster.py",
        "Cluster.demand",
        "if len(self._demands) > 8192:",
        "if len(self._demands) > 8193:",
        "how much is remembered changes no answer",
    ),
    Equivalent(
        "core/cluster.py",
        "Cluster.row",
        "new = np.concatenate((old, np.zeros((max(8, row), self.table.size), np.int64)))",
        "new = np.concatenate((old, np.zeros((min(8, row), self.table.size), np.int64)))",
        "arrays grow in smaller steps, and have grown enough once the four first resources are named",
    ),
    Equivalent(
        "core/cluster.py",
        "Demand.__init__",
        "self.gpu_row = row_of[shape.gpu_resource] if shape.gpus else -1",
        "self.gpu_row = row_of[shape.gpu_resource] if shape.gpus else 1",
        "a shape without GPUs takes nothing from that row",
    ),
    Equivalent(
        "core/decide.py",
        "_by_rank",
        "return sorted(records, key=lambda r: (-r.priority, r.below_since or r.nominated_at or 0.0, r.key))",
        "return sorted(records, key=lambda r: (-r.priority, r.below_since or r.nominated_at or 1.0, r.key))",
        "times are seconds since 1970",
    ),
    Equivalent(
        "core/decide.py",
        "advance",
        "return",
        "pass",
        "a gang that is dropped has nobody to decide anything for",
    ),
    Equivalent(
        "core/decide.py",
        "_check_inherited",
        "if not record.nomination or not facts.ready:",
        "if not record.nomination and not facts.ready:",
        "a nomination without waiting members is dropped in the same cycle",
    ),
    Equivalent(
        "core/decide.py",
        "_reserve_again",
        "placement = place_gang(state.cluster, Bid(groups, 0, topology=gang.topology)) if groups else None",
        "placement = place_gang(state.cluster, Bid(groups, 1, topology=gang.topology)) if groups else None",
        "as many as there is room for are placed, and if there is none, none",
    ),
    Equivalent(
        "core/devices.py",
        "choose_whole",
        "width = 1",
        "width = 2",
        "of one card the pair is asked first, and single cards differ in nothing but their pairs",
    ),
    Equivalent(
        "core/devices.py",
        "_take",
        "base = (block & -block).bit_length() - 1",
        "base = (block | -block).bit_length() - 1",
        "block | -block is -(block & -block), which is as long",
    ),
    Equivalent(
        "core/devices.py",
        "_take",
        "base = (block & -block).bit_length() - 1",
        "base = (block & block).bit_length() - 1",
        "all bits of an aligned block lead to its start",
    ),
    Equivalent(
        "core/distribute.py",
        "_level_out",
        "width = max(len(sums), int(codes.max(initial=-1)) + 1)",
        "width = max(len(sums), int(codes.max(initial=-2)) + 1)",
        "there are always codes, and none is below -1",
    ),
    Equivalent(
        "core/distribute.py",
        "_level_out",
        "width = max(len(sums), int(codes.max(initial=-1)) + 1)",
        "width = max(len(sums), int(codes.max(initial=-1)) + 2)",
        "one more domain, without room",
    ),
    Equivalent(
        "core/distribute.py",
        "_level_out",
        "heap = [(levels.get(code, 0), code) for code in range(width) if room[code]]",
        "heap = [(levels.get(code, 1), code) for code in range(width) if room[code]]",
        "whatever has room is counted, so it has a level",
    ),
    Equivalent(
        "core/distribute.py",
        "_level_out",
        "heap = [(levels.get(code, 0), code) for code in range(width) if room[code]]",
        "heap = [(levels.get(code), code) for code in range(width) if room[code]]",
        "whatever has room is counted, so it has a level",
    ),
    Equivalent(
        "core/domains.py",
        "_level_domains",
        "waste += sums - wanted",
        "waste += sums + wanted",
        "the same for every domain, and only their order counts",
    ),
    Equivalent(
        "core/domains.py",
        "own_domains",
        "return np.where(np.append(possible, False)[codes], codes, -1)",
        "return np.where(np.append(possible, False)[codes], codes, -2)",
        "every negative code means no domain",
    ),
    Equivalent(
        "core/domains.py",
        "reach",
        "home = int(np.where(possible, room[:-1], -1).argmax()) if possible.any() else -2",
        "home = int(np.where(possible, room[:-1], -2).argmax()) if possible.any() else -2",
        "room is never negative",
    ),
    Equivalent(
        "core/domains.py",
        "reach",
        "home = int(np.where(possible, room[:-1], -1).argmax()) if possible.any() else -2",
        "home = int(np.where(possible, room[:-1], -1).argmax()) if possible.any() else -3",
        "no node has either code",
    ),
    Equivalent(
        "core/drain.py",
        "choose_target",
        "state.target_version = _version_of_empty(state)",
        "pass",
        "the next cycle proves the target once more and finds the same",
    ),
    Equivalent(
        "core/drain.py",
        "fits_empty",
        "if state.empty_answers.get(key, (None, False))[0] != version"
        " or any(g.pods[0].shape.has_pod_terms for g in groups):",
        "if state.empty_answers.get(key, (None, False))[1] != version"
        " or any(g.pods[0].shape.has_pod_terms for g in groups):",
        "the answer is found out again, and is the same",
    ),
    Equivalent(
        "core/nodes.py", "NodeTable.put", "self.version += 1", "self.version += 2", "only another one is needed"
    ),
    Equivalent(
        "core/nodes.py", "NodeTable.put", "self.version += 1", "self.version -= 1", "only another one is needed"
    ),
    Equivalent(
        "core/place.py",
        "place_gang",
        "if everyone == (bid.needed,) and not bid.topology and bid.liking is None:",
        "if everyone == (bid.needed,) and not bid.topology and bid.liking is not None:",
        "a short cut to where the long way leads",
    ),
    Equivalent(
        "core/preempt.py",
        "_parts",
        "by_role = {role.name: facts.have_by_role.get(role.name, 0) - role.minimum for role in facts.roles}",
        "by_role = {role.name: facts.have_by_role.get(role.name, 1) - role.minimum for role in facts.roles}",
        "of a role that has nobody, nobody is taken",
    ),
    Equivalent(
        "core/quantity.py",
        "",
        "_LOWEST_SHIFT: Final = -300",
        "_LOWEST_SHIFT: Final = -301",
        "beyond it digits no longer matter",
    ),
    Equivalent(
        "core/quantity.py",
        "",
        '"": (10, 0),',
        '"": (11, 0),',
        "a base is 2 or something else",
    ),
    Equivalent(
        "core/quantity.py",
        "",
        '"G": (10, 9),',
        '"G": (11, 9),',
        "a base is 2 or something else",
    ),
    Equivalent(
        "core/quantity.py",
        "",
        '"E": (10, 18),',
        '"E": (11, 18),',
        "a base is 2 or something else",
    ),
    Equivalent(
        "core/topology.py",
        "Topology.required_codes",
        "version, codes = self._cache.get(key, (-1, None))",
        "version, codes = self._cache.get(key, (-2, None))",
        "what is not known is found out, whatever its version",
    ),
    Equivalent(
        "core/topology.py",
        "Topology.codes",
        "version, codes = self._cache.get(level, (-1, None))",
        "version, codes = self._cache.get(level, (1, None))",
        "what is not known is found out, whatever its version",
    ),
    Equivalent(
        "webhook/configuration.py",
        "_write_ours",
        "known = [f\"has({'.'.join(parts[:length])})\" for length in range(2, len(parts) + 1)]",
        "known = [f\"has({'.'.join(parts[:length])})\" for length in range(2, len(parts) + 2)]",
        "the last condition twice",
    ),
    Equivalent(
        "webhook/connections.py",
        "Connections._forget",
        "deadline.cancel()",
        "pass",
        "a deadline of a connection that is forgotten does nothing",
    ),
    Equivalent(
        "webhook/jobs.py",
        "_written",
        "return",
        "pass",
        "what has one template by definition has no others",
    ),
    Equivalent(
        "webhook/pods.py",
        "_check_gang",
        "return",
        "pass",
        "a short cut: only annotations have anything to say about gangs that could be wrong",
    ),
    Equivalent(
        "webhook/renewal.py",
        "Renewal._read",
        "raise NotFound(404, error.reason, text) from error",
        "raise NotFound(405, error.reason, text) from error",
        "the class says it, and the text is what is told",
    ),
    Equivalent(
        "webhook/rotation.py",
        "make_pair",
        'authority = certificates.make_authority(f"gpu-scheduler webhook CA {os.urandom(4).hex()}", period)',
        'authority = certificates.make_authority(f"gpu-scheduler webhook CA {os.urandom(5).hex()}", period)',
        "any name that nobody else has",
    ),
    Equivalent(
        "core/capacity.py",
        "Capacity.__init__",
        "self.total = 0",
        "pass",
        "the first refresh sets it",
    ),
    Equivalent(
        "core/capacity.py",
        "Capacity.__init__",
        "self._position = 0",
        "self._position = 1",
        "the first refresh sets it",
    ),
    Equivalent(
        "core/census.py",
        "Census.add",
        "if change < 0 and not carriers.any():",
        "if change < 1 and not carriers.any():",
        "nobody counts a pod in by nothing",
    ),
    Equivalent(
        "core/cluster.py",
        "Cluster.assume",
        "openable = self.free.item(row, slot) if row >= 0 else MAX_DEVICES",
        "openable = self.free.item(row, slot) if row >= 1 else MAX_DEVICES",
        "the first row is that of the CPUs",
    ),
    Equivalent(
        "core/cluster.py",
        "Cluster.remove_node",
        "self.gpu_row[slot] = -1",
        "self.gpu_row[slot] = -2",
        "every negative row means none",
    ),
    Equivalent(
        "core/fit.py",
        "spread_domains",
        "sums = np.bincount(codes, weights=here).astype(np.int64) if len(codes) else np.zeros(0, np.int64)",
        "sums = np.bincount(codes, weights=here).astype(np.int64) if len(codes) else np.zeros(1, np.int64)",
        "one more domain, which is not present",
    ),
    Equivalent(
        "core/fit.py",
        "spread_domains",
        "return counted, np.where(present, sums, -1)",
        "return counted, np.where(present, sums, -2)",
        "every negative sum means that a domain is not counted",
    ),
    Equivalent(
        "core/nodes.py",
        "NodeTable.__init__",
        "self._empty = list(range(self.size - 1, -1, -1))",
        "self._empty = list(range(self.size - 1, -1, 1))",
        "without empty slots the table grows",
    ),
)
