// One binary for a whole control plane: the name it is called by, or its first argument, picks the program.
// One link instead of five; the code the programs share is compiled and stored once.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
	_ "time/tzdata" // CronJobs with a time zone

	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // credentials that kubectl gets from other programs
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// Each is a function, not a command: building one registers flags and feature gates that another would clash with.
var programs = map[string]func(){
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          func() { os.Exit(cli.Run(apiserver.NewAPIServerCommand())) },
	"kube-controller-manager": func() { os.Exit(cli.Run(controllers.NewControllerManagerCommand())) },
	"kube-fit":                answerQuestions,
	"kube-scheduler":          func() { os.Exit(cli.Run(scheduler.NewSchedulerCommand())) },
	"kubectl":                 runKubectl,
}

func runKubectl() {
	logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}

// endWithParent leaves no server behind when the tests that started it are killed: nobody else would stop it.
func endWithParent(parent string) {
	for strconv.Itoa(os.Getppid()) == parent {
		time.Sleep(time.Second)
	}
	os.Exit(1)
}

func main() {
	program, known := programs[filepath.Base(os.Args[0])]
	if !known && len(os.Args) > 1 {
		if program, known = programs[os.Args[1]]; known {
			os.Args = os.Args[1:]
		}
	}
	if !known {
		fmt.Fprintln(os.Stderr, "usage: controlplane PROGRAM [flag ...]; programs:", slices.Sorted(maps.Keys(programs)))
		os.Exit(2)
	}
	if parent := os.Getenv("CONTROLPLANE_PARENT"); parent != "" {
		go endWithParent(parent)
	}
	program()
}
