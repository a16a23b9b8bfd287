"""The combinations of chart values in the tests."""

from __future__ import annotations

import base64

from gpu_scheduler.k8s.objects import Json

SYSTEM = "gpu-scheduler-system"
CA = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nno one's\n-----END CERTIFICATE-----\n").decode()
URL = "https://webhook.example.com:8443"

COMBINATIONS: dict[str, Json] = {
    "defaults": {},
    "a webhook apart": {"webhook": {"separate": True, "inject": False, "deny": ["privileged", "node-name"]}},
    "a webhook outside": {"webhook": {"url": URL}},
    "a webhook outside with a given CA": {"webhook": {"url": URL, "caBundle": CA}},
    "no webhook": {"webhook": {"enabled": False}},
    "a given CA": {"webhook": {"caBundle": CA}},
    "cert-manager": {"webhook": {"certManager": {"enabled": True}}},
    "an issuer of cert-manager": {
        "webhook": {"certManager": {"enabled": True, "issuerRef": {"kind": "ClusterIssuer", "name": "internal"}}}
    },
    "no policy": {"admissionPolicy": {"enabled": False}},
    "tenants": {"tenancy": {"policy": {"enabled": True, "namespaceSelector": {"matchLabels": {"tenant": "true"}}}}},
    "tenants with shares": {
        "scheduler": {
            "schedulerNames": ["volcano", "gpu-scheduler"],
            "settings": {"gpuResources": ["amd.com/gpu"], "maxGraceSeconds": 0},
        },
        "tenancy": {"policy": {"enabled": True, "requireRequests": False}},
    },
    "an operator": {"operator": {"enabled": True}},
    "an operator without gangs": {"operator": {"enabled": True, "gangSchedulerName": "none"}},
    "everything": {
        "image": {"repository": "example.com/gpu-scheduler", "tag": "1.2.3", "pullSecrets": [{"name": "registry"}]},
        "replicaCount": 2,
        "scheduler": {
            "schedulerNames": ["volcano", "gpu-scheduler"],
            "settings": {
                "holdSeconds": 0.5,
                "maxOpenBinds": 100_000,
                "certificateLifetimeSeconds": 10_000_000,
                "logFormat": "json",
                "topologyLevels": [{"name": "rack", "label": "x/rack"}],
            },
            "extraArgs": ["--no-gangs"],
        },
        "webhook": {"separate": True, "extraArgs": ["--log-level=debug"]},
        "operator": {
            "enabled": True,
            "replicaCount": 2,
            "gangSchedulerName": "volcano",
            "namespaces": ["default", "kube-public"],
            "installDefinitions": False,
            "extraArgs": ["--lease-duration=6"],
        },
        "serviceAccount": {"annotations": {"example.com/identity": "gpu"}},
        "podAnnotations": {"gpu-scheduler.io/simulate-duration": "0.2"},  # a simulated node ends them after that
        "podLabels": {"team": "ml"},
        "priorityClassName": "",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "networkPolicy": {
            "enabled": True,
            "metricsFrom": [{"namespaceSelector": {}}],
            "egress": [{"ports": [{"port": 443}]}],
        },
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    },
}
"""Chart values by name of the combination."""
