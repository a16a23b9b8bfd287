// Marks the folder as a module. What is built comes from v1.35.mod or v1.37.mod (go build -modfile).
module gpu-scheduler.io/controlplane

go 1.25.0
