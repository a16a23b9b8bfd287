// kube-fit answers questions about Kubernetes' own rules: JSON lines in, JSON lines out. What API server and scheduler
// would do is done by their own code, without a server.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	internal "k8s.io/kubernetes/pkg/apis/core"
	nodes "k8s.io/kubernetes/pkg/registry/core/node"
	pods "k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/scheduler"
	snapshots "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/profile"
)

type question struct {
	Cluster    *cluster          `json:"cluster"`    // which nodes take Pods?
	Pods       []json.RawMessage `json:"pods"`       // without a cluster: what do they ask for?
	Quantities []string          `json:"quantities"` // what are they?
}

type cluster struct {
	Namespaces     []json.RawMessage `json:"namespaces"`
	Nodes          []json.RawMessage `json:"nodes"`
	Pods           []json.RawMessage `json:"pods"`
	Claims         []json.RawMessage `json:"claims"`
	Volumes        []json.RawMessage `json:"volumes"`
	StorageClasses []json.RawMessage `json:"storageClasses"`
}

type answer struct {
	Error      string      `json:"error,omitempty"`   // the question itself is wrong
	Cluster    *cluster    `json:"cluster,omitempty"` // as the API server would have it
	Pods       []podAnswer `json:"pods,omitempty"`
	Quantities []quantity  `json:"quantities,omitempty"`
}

type podAnswer struct {
	Invalid  string            `json:"invalid,omitempty"`
	Pod      json.RawMessage   `json:"pod,omitempty"` // as the API server would have it
	Requests map[string]int64  `json:"requests,omitempty"`
	Accepted []string          `json:"accepted"`
	Refused  map[string]string `json:"refused,omitempty"` // which plugin says what, by node
}

type quantity struct {
	Invalid string `json:"invalid,omitempty"`
	Text    string `json:"text"`
	Stored  string `json:"stored"` // in an object's list of resources, which are rounded up to milli
	Value   int64  `json:"value"`
	Milli   int64  `json:"milli"`
}

func answerQuestions() {
	in, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked question
		var found answer
		if err := json.Unmarshal(line, &asked); err != nil {
			found.Error = err.Error()
		} else if err := respond(&asked, &found); err != nil {
			found = answer{Error: err.Error()}
		}
		if err := out.Encode(&found); err != nil {
			klog.Fatal(err)
		}
	}
}

func respond(asked *question, found *answer) error {
	for _, text := range asked.Quantities {
		found.Quantities = append(found.Quantities, readQuantity(text))
	}
	place := func(pod *core.Pod, into *podAnswer) error {
		into.Requests = requests(pod)
		return nil
	}
	if asked.Cluster != nil {
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		running, err := start(ctx)
		if err != nil {
			return err
		}
		if found.Cluster, err = running.fill(ctx, asked.Cluster); err != nil {
			return err
		}
		place = func(pod *core.Pod, into *podAnswer) error { return running.place(ctx, pod, into) }
	}
	for _, raw := range asked.Pods {
		var one podAnswer
		if pod, err := preparePod(raw); err != nil {
			one.Invalid = err.Error()
		} else if one.Pod, err = encode(pod); err != nil { // first: adding requests up may change them in the pod
			return err
		} else if err := place(pod, &one); err != nil {
			return err
		}
		found.Pods = append(found.Pods, one)
	}
	return nil
}

func readQuantity(text string) quantity {
	parsed, err := resource.ParseQuantity(text)
	if err != nil {
		return quantity{Invalid: err.Error()}
	}
	stored := parsed.DeepCopy()
	stored.RoundUp(resource.Milli) // what defaulting does to every list of resources
	return quantity{Text: parsed.String(), Stored: stored.String(), Value: parsed.Value(), Milli: parsed.MilliValue()}
}

// requests is what a pod takes of its node; of a pod without a node, what it asks for.
func requests(pod *core.Pod) map[string]int64 {
	total := framework.NewNodeInfo(pod).GetRequested()
	found := map[string]int64{"cpu": total.GetMilliCPU(), "memory": total.GetMemory()}
	found["ephemeral-storage"] = total.GetEphemeralStorage()
	for name, amount := range total.GetScalarResources() {
		found[string(name)] = amount
	}
	return found
}

// What the API server makes of what is sent to it.

func preparePod(raw []byte) (*core.Pod, error) {
	var sent internal.Pod
	if err := runtime.DecodeInto(legacyscheme.Codecs.UniversalDecoder(), raw, &sent); err != nil {
		return nil, err
	}
	status := sent.Status
	pods.Strategy.PrepareForCreate(context.Background(), &sent)
	if err := pods.Strategy.Validate(context.Background(), &sent); len(err) > 0 {
		return nil, err.ToAggregate()
	}
	if sent.Spec.NodeName != "" {
		sent.Status = status // the kubelet's word
	}
	var stored core.Pod
	return &stored, legacyscheme.Scheme.Convert(&sent, &stored, nil)
}

func prepareNode(raw []byte) (*core.Node, error) {
	var sent internal.Node
	if err := runtime.DecodeInto(legacyscheme.Codecs.UniversalDecoder(), raw, &sent); err != nil {
		return nil, err
	}
	if err := nodes.Strategy.Validate(context.Background(), &sent); len(err) > 0 {
		return nil, err.ToAggregate()
	}
	var stored core.Node
	return &stored, legacyscheme.Scheme.Convert(&sent, &stored, nil)
}

// decode is for kinds of which the API server only fills in defaults.
func decode[T any, P interface {
	*T
	runtime.Object
}](raw []byte) (P, error) {
	found, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	if err != nil {
		return nil, err
	}
	typed, right := found.(P)
	if !right {
		return nil, fmt.Errorf("%T is not expected here", found)
	}
	legacyscheme.Scheme.Default(typed)
	return typed, nil
}

func encode(object runtime.Object) (json.RawMessage, error) {
	text, err := runtime.Encode(legacyscheme.Codecs.LegacyCodec(core.SchemeGroupVersion, storage.SchemeGroupVersion), object)
	return bytes.TrimSpace(text), err
}

// stillInformer has no server to follow: what is put into it is told to everybody before put returns.
type stillInformer struct {
	cache.SharedIndexInformer
	handlers []cache.ResourceEventHandler
}

func (s *stillInformer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	s.handlers = append(s.handlers, handler)
	return s.SharedIndexInformer.AddEventHandler(handler)
}

func (s *stillInformer) put(object runtime.Object) error {
	if err := s.GetIndexer().Add(object); err != nil {
		return err
	}
	for _, handler := range s.handlers {
		handler.OnAdd(object, true)
	}
	return nil
}

// stillScheduler is kube-scheduler with its default profile, put together by itself and never started.
type stillScheduler struct {
	*scheduler.Scheduler
	namespaces, nodes, pods, claims, volumes, classes *stillInformer
}

func start(ctx context.Context) (*stillScheduler, error) {
	client, err := clientset.NewForConfig(&rest.Config{Host: "127.0.0.1:1"}) // never asked
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	still := func(kind runtime.Object) *stillInformer {
		indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
		made := &stillInformer{SharedIndexInformer: cache.NewSharedIndexInformer(&cache.ListWatch{}, kind, 0, indexers)}
		factory.InformerFor(kind, func(clientset.Interface, time.Duration) cache.SharedIndexInformer { return made })
		return made
	}
	found := &stillScheduler{
		namespaces: still(&core.Namespace{}), nodes: still(&core.Node{}), pods: still(&core.Pod{}),
		claims: still(&core.PersistentVolumeClaim{}), volumes: still(&core.PersistentVolume{}),
		classes: still(&storage.StorageClass{}),
	}
	recorders := profile.NewRecorderFactory(events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()}))
	found.Scheduler, err = scheduler.New(ctx, client, factory, nil, recorders)
	return found, err
}

// fill puts objects where the scheduler's informers would, and returns them as the API server would have them.
func (s *stillScheduler) fill(ctx context.Context, sent *cluster) (*cluster, error) {
	stored := &cluster{}
	var err error
	if stored.Namespaces, err = fillIn(s.namespaces, sent.Namespaces, decode[core.Namespace]); err != nil {
		return nil, err
	}
	if stored.StorageClasses, err = fillIn(s.classes, sent.StorageClasses, decode[storage.StorageClass]); err != nil {
		return nil, err
	}
	if stored.Volumes, err = fillIn(s.volumes, sent.Volumes, decode[core.PersistentVolume]); err != nil {
		return nil, err
	}
	if stored.Claims, err = fillIn(s.claims, sent.Claims, decode[core.PersistentVolumeClaim]); err != nil {
		return nil, err
	}
	if stored.Nodes, err = fillIn(s.nodes, sent.Nodes, prepareNode); err != nil {
		return nil, err
	}
	if stored.Pods, err = fillIn(s.pods, sent.Pods, preparePod); err != nil {
		return nil, err
	}
	snapshot := s.framework().SnapshotSharedLister().(*snapshots.Snapshot)
	return stored, s.Cache.UpdateSnapshot(klog.FromContext(ctx), snapshot)
}

func fillIn[T runtime.Object](informer *stillInformer, sent []json.RawMessage, read func([]byte) (T, error)) ([]json.RawMessage, error) {
	var stored []json.RawMessage
	for _, raw := range sent {
		object, err := read(raw)
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, raw)
		}
		text, err := encode(object)
		if err != nil {
			return nil, err
		}
		stored = append(stored, text)
		if pod, isPod := any(object).(*core.Pod); isPod && hasEnded(pod) {
			continue // the scheduler's informer selects the others
		}
		if err := informer.put(object); err != nil {
			return nil, err
		}
	}
	return stored, nil
}

func hasEnded(pod *core.Pod) bool {
	return pod.Status.Phase == core.PodSucceeded || pod.Status.Phase == core.PodFailed
}

func (s *stillScheduler) framework() framework.Framework {
	return s.Profiles[core.DefaultSchedulerName]
}

// place asks every Filter plugin about every node, as Scheduler.findNodesThatFitPod does until it has enough.
func (s *stillScheduler) place(ctx context.Context, pod *core.Pod, into *podAnswer) error {
	plugins, state := s.framework(), framework.NewCycleState()
	into.Accepted, into.Refused = []string{}, map[string]string{}
	chosen, status, _ := plugins.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() && !status.IsRejected() {
		return status.AsError()
	}
	all, err := plugins.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return err
	}
	for _, node := range all {
		name := node.Node().Name
		verdict := status
		if verdict.IsSuccess() && !chosen.AllNodes() && !chosen.NodeNames.Has(name) {
			into.Refused[name] = "not among the nodes that PreFilter plugins chose"
			continue
		}
		if verdict.IsSuccess() {
			verdict = plugins.RunFilterPluginsWithNominatedPods(ctx, state, pod, node)
		}
		if verdict.IsSuccess() {
			into.Accepted = append(into.Accepted, name)
		} else if verdict.IsRejected() {
			into.Refused[name] = verdict.Plugin() + ": " + verdict.Message()
		} else {
			return verdict.AsError()
		}
	}
	slices.Sort(into.Accepted)
	return nil
}
