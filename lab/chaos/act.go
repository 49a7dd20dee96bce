package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/process"
)

// carryOut carries out an action, and returns when it is over. An error is one that may be, while all is broken.
func (w *world) carryOut(ctx context.Context, a Action) error {
	once, cancel := context.WithTimeout(context.WithoutCancel(ctx), callBound)
	defer cancel()
	switch a.Do {
	case Kill:
		return w.killComponent(a.To)
	case Freeze:
		return w.freezeComponent(ctx, a)
	case FillDisk:
		if w.disk == nil {
			return errors.New("only root has a small disk made")
		}
		return w.disk.fill(ctx, a.For)
	case FailCalls, FailBuilds, ZoneOutage:
		return w.createFault(once, a)
	case CreateInstance, StopInstance, StartInstance, RebootInstance, CrashInstance, TerminateInstance:
		return w.changeInstance(once, a)
	case CreateService:
		_, err := w.kube.CoreV1().Services("default").Create(once, newService(a.To), metav1.CreateOptions{})
		return err
	case DeleteService:
		return w.kube.CoreV1().Services("default").Delete(once, a.To, metav1.DeleteOptions{})
	case ChangePort, ChangeType, ChangePolicy, ChangeCheck:
		return w.changeService(once, a)
	case LabelNode, ExcludeNode:
		return w.labelNode(once, a)
	case ScalePods:
		return w.patchDeployment(once, a.How)
	}
	return fmt.Errorf("%q is nothing that is done", a.Do)
}

func (w *world) findComponent(name string) (*process.Process, error) {
	running, err := w.lab.Host.Running()
	if err == nil && running[name] == nil {
		err = fmt.Errorf("%s does not run", name)
	}
	return running[name], err
}

func (w *world) killComponent(name string) error {
	p, err := w.findComponent(name)
	if err != nil {
		return err
	}
	return p.Signal(syscall.SIGKILL)
}

func (w *world) freezeComponent(ctx context.Context, a Action) error {
	p, err := w.findComponent(a.To)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.frozen[p.PID] = p
	w.mu.Unlock()
	err = p.Signal(syscall.SIGSTOP)
	waitFor(ctx, a.For)
	w.thawComponent(p)
	return err
}

// thawComponent lets a frozen process go on; all of them if p is nil.
func (w *world) thawComponent(p *process.Process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for pid, frozen := range w.frozen {
		if p == nil || p.PID == pid {
			_ = frozen.Signal(syscall.SIGCONT) // It may have been killed.
			delete(w.frozen, pid)
		}
	}
}

// waitFor returns after d, or when ctx ends.
func waitFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (w *world) createFault(ctx context.Context, a Action) error {
	f := api.FaultCreate{ForSeconds: a.For.Seconds(), Match: api.FaultMatch{Token: a.To}}
	switch e := &f.Effect; a.How {
	case "500", "503", "429":
		e.Status, _ = strconv.Atoi(a.How)
	case "drop":
		e.Drop = true
	case "lost":
		e.CarryOut, e.Drop = true, true
	case "slow":
		e.DelayMilliseconds = 700
	case "hang":
		e.Hang, f.Every = true, 3
	case "fail":
		f.Match, e.Fail = api.FaultMatch{}, "chaos wants it so"
	case "stuck":
		f.Match, e.Stuck = api.FaultMatch{}, true
	default:
		f.Match, e.ZoneOutage = api.FaultMatch{}, a.To
	}
	_, err := w.cloud.CreateFault(ctx, f)
	return err
}

func (w *world) changeInstance(ctx context.Context, a Action) error {
	there, err := w.cloud.ListInstances(ctx, client.InstanceFilter{Name: a.To})
	if err != nil {
		return err
	}
	var now *api.Instance
	for _, i := range there {
		if i.State != api.InstanceTerminated && i.State != api.InstanceTerminating {
			now = &i
		}
	}
	if a.Do == CreateInstance {
		if now == nil {
			_, err = w.cloud.CreateInstance(ctx, api.InstanceCreate{Name: &a.To})
		}
		return err
	}
	if now == nil {
		return fmt.Errorf("there is no %s", a.To)
	}
	switch a.Do {
	case StopInstance:
		_, err = w.cloud.StopInstance(ctx, now.ID)
	case StartInstance:
		if now.State == api.InstanceStopped || now.State == api.InstanceError {
			_, err = w.cloud.StartInstance(ctx, now.ID)
		}
	case RebootInstance:
		_, err = w.cloud.RebootInstance(ctx, now.ID)
	case CrashInstance:
		_, err = w.cloud.CreateFault(ctx, api.FaultCreate{
			Times: 1, Match: api.FaultMatch{Resource: now.ID}, Effect: api.FaultEffect{Crash: true},
		})
	case TerminateInstance:
		w.mu.Lock() // Also if the answer is lost.
		w.ended[now.ID] = true
		w.mu.Unlock()
		_, err = w.cloud.TerminateInstance(ctx, now.ID)
	default:
	}
	return err
}

func newService(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 8080, TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

func (w *world) changeService(ctx context.Context, a Action) error {
	services := w.kube.CoreV1().Services("default")
	svc, err := services.Get(ctx, a.To, metav1.GetOptions{})
	if err != nil {
		return err
	}
	balanced := svc.Spec.Type == corev1.ServiceTypeLoadBalancer
	switch a.Do {
	case ChangePort:
		port, err := strconv.ParseInt(a.How, 10, 32)
		if err != nil {
			return err
		}
		svc.Spec.Ports[0].Port = int32(port)
	case ChangeType:
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		if balanced {
			svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeClusterIP, ""
			delete(svc.Annotations, contract.AnnotationHealthCheck)
		}
	case ChangePolicy:
		delete(svc.Annotations, contract.AnnotationHealthCheck) // It does not go with policy Local.
		if balanced && svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
			svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		} else if balanced {
			svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		}
	case ChangeCheck:
		if svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
			metav1.SetMetaDataAnnotation(&svc.ObjectMeta, contract.AnnotationHealthCheck, "tcp")
		}
	default:
	}
	_, err = services.Update(ctx, svc, metav1.UpdateOptions{})
	return err
}

// labelNode sets a label on a Node, or takes it off.
func (w *world) labelNode(ctx context.Context, a Action) error {
	label := "chaos.ccmlab.io/label"
	if a.Do == ExcludeNode {
		label = corev1.LabelNodeExcludeBalancers
	}
	node, err := w.kube.CoreV1().Nodes().Get(ctx, a.To, metav1.GetOptions{})
	if err != nil {
		return err
	}
	var value *string
	if _, there := node.Labels[label]; !there {
		value = new(string)
		*value = "true"
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]*string{label: value}}})
	if err != nil {
		return err
	}
	_, err = w.kube.CoreV1().Nodes().Patch(ctx, a.To, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (w *world) patchDeployment(ctx context.Context, replicas string) error {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%s}}`, replicas)
	_, err := w.kube.AppsV1().Deployments("default").
		Patch(ctx, "web", types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
