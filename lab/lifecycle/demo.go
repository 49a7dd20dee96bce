package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/apply"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/status"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/lab/ui"
	"github.com/ccmlab/ccmlab/manifests"
)

// deployDemo creates what is missing of the demo, and waits until its pods are scheduled, or
// an Event says why they are not.
func (u *upRun) deployDemo(ctx context.Context, note func(string)) (string, error) {
	later, err := u.serviceComesLater()
	if err != nil {
		return "", err
	}
	if err := u.createMissingOfDemo(ctx, func(document []byte) bool {
		return later && isService(document)
	}); err != nil {
		return "", err
	}
	demo, err := u.kube.AppsV1().Deployments(manifests.DemoNamespace).Get(ctx, manifests.DemoName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	switch {
	case demo.Spec.Replicas != nil && *demo.Spec.Replicas == 0:
		u.demoIdle = idleScaledToZero
	case len(u.nodes.workers) == 0:
		u.demoIdle = idleNoNode
	}
	if u.demoIdle != "" {
		return u.demoIdle, nil
	}
	var detail string
	err = u.poll(ctx, "the demo's pods to be scheduled, or to have an event that says why not", func(ctx context.Context) error {
		pods, err := u.listDemoPods(ctx)
		if err != nil {
			return err
		}
		if len(pods) == 0 {
			return errors.New("kube-controller-manager has not created the demo's pods yet")
		}
		note("waiting for the scheduler's word")
		scheduled, why := 0, ""
		for _, p := range pods {
			if p.Spec.NodeName != "" {
				scheduled++
			} else if c := kubediff.PodCondition(&p, corev1.PodScheduled); c.Type != "" {
				why = c.Message
			}
		}
		if scheduled == len(pods) {
			detail = "scheduled"
			return nil
		}
		if why != "" && !u.fresh { // Somebody may have made them fit on no node.
			detail = "Pending: " + ui.FirstSentence(why)
			return nil
		}
		events, err := u.kube.CoreV1().Events(manifests.DemoNamespace).
			List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, "untolerated taint") {
				detail = "Pending: " + ui.FirstSentence(e.Message)
				return nil
			}
		}
		return errors.New("no FailedScheduling event that speaks of the taint yet")
	})
	return detail, err
}

// serviceComesLater tells that the demo's Service is created when the Nodes are initialised: with a CCM
// that is not the lab's own. While Nodes come, upstream's service controller may ensure and update its
// load balancer at a time, and some CCMs make two of it then.
func (u *upRun) serviceComesLater() (bool, error) {
	own, err := u.OwnCCM()
	return u.wantsCCM && (u.opts.UseCCM != nil || !own), err
}

// createMissingOfDemo creates the demo's objects that do not exist, but for those that skip names.
// What somebody has changed of the others stays.
func (u *upRun) createMissingOfDemo(ctx context.Context, skip func(document []byte) bool) error {
	documents := slices.DeleteFunc(bytes.Split(u.demoManifest(), []byte("\n---\n")), skip)
	return u.poll(ctx, "the API server to accept the demo", func(ctx context.Context) error {
		made, err := apply.Missing(ctx, u.Cluster.Kubeconfig(), documents...)
		if len(made) > 0 {
			u.addChange("created " + strings.Join(made, ", "))
		}
		return err
	})
}

func isService(document []byte) bool { return bytes.Contains(document, []byte("\nkind: Service\n")) }

// demoManifest is the demo's manifest, with another port if somebody listens on the usual
// one on 0.0.0.0.
func (u *upRun) demoManifest() []byte {
	port := u.Cluster.Traits().DemoPort
	return bytes.ReplaceAll(manifests.Demo, []byte("8080"), []byte(strconv.Itoa(port)))
}

func (u *upRun) listDemoPods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := u.kube.CoreV1().Pods(manifests.DemoNamespace).
		List(ctx, metav1.ListOptions{LabelSelector: manifests.DemoSelector})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// waitForDemoPods waits until as many of the demo's pods as can be are Ready.
func (u *upRun) waitForDemoPods(ctx context.Context, note func(string)) (string, error) {
	if u.demoIdle != "" {
		return u.demoIdle, nil
	}
	var pods podReadiness
	var stuck stuckTimer
	err := u.poll(ctx, "the demo's pods to run", func(ctx context.Context) error {
		list, err := u.listDemoPods(ctx)
		if err == nil && !u.fresh { // Nodes come and go there.
			err = u.updateNodeReadiness(ctx)
		}
		if err != nil {
			return err
		}
		pods = u.nodes.readinessOfPods(list)
		note(fmt.Sprintf("%d of %d Ready", len(pods.readyOn), pods.total))
		if pods.idle != "" || len(pods.readyOn) >= pods.wantReady {
			return nil
		}
		missing := fmt.Errorf("%d of %d pods are Ready", len(pods.readyOn), pods.wantReady)
		if !u.fresh && u.Cluster.Traits().HollowNodes && stuck.expired(pods.total > 0 && pods.settled, time.Now()) {
			return cluster.Permanent(fmt.Errorf(
				"%w, and no other has become so for %s; `lab explain service/%s` says why", missing, stuckBound,
				manifests.DemoName,
			))
		}
		return missing
	})
	if u.demoIdle = pods.idle; u.demoIdle != "" {
		return u.demoIdle, err
	}
	return fmt.Sprintf("%d Ready on %s", len(pods.readyOn), strings.Join(slices.Compact(pods.readyOn), ", ")), err
}

// waitForLoadBalancer creates the demo's Service if it was to come later, and waits until it has an
// address.
func (u *upRun) waitForLoadBalancer(ctx context.Context, note func(string)) (string, error) {
	later, err := u.serviceComesLater()
	if later {
		err = u.createMissingOfDemo(ctx, func(document []byte) bool { return !isService(document) })
	}
	if err != nil {
		return "", err
	}
	if other, err := u.OtherCCM(); err != nil || other != nil && other.WithoutBalancers {
		u.demoIdle = "service web stays without an address: this CCM makes no load balancers"
		return u.demoIdle, err
	}
	var svc *corev1.Service
	note("waiting for the Service's address")
	err = u.poll(ctx, "service web to get an address; `kubectl describe service web` shows its events", func(ctx context.Context) error {
		var err error
		if svc, err = u.kube.CoreV1().Services(manifests.DemoNamespace).
			Get(ctx, manifests.DemoName, metav1.GetOptions{}); err != nil {
			return err
		}
		if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || kubediff.IngressAddress(svc) != "" {
			return nil
		}
		balancers, err := u.cloud.ListLoadBalancers(ctx, client.LoadBalancerFilter{})
		lb := status.BalancerOf(svc, balancers)
		if err != nil || lb == nil {
			return errors.Join(errors.New("the cloud has no load balancer for it yet"), err)
		}
		if lb.StateReason != "" {
			return fmt.Errorf("its load balancer %s is %s: %s", lb.ID, lb.State, lb.StateReason)
		}
		return fmt.Errorf("its load balancer %s is %s", lb.ID, lb.State)
	})
	if err != nil {
		return "", err
	}
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		u.demoIdle = fmt.Sprintf(idleServiceType, svc.Spec.Type)
		return u.demoIdle, nil
	}
	u.demoURL = fmt.Sprintf("http://%s:%d/", kubediff.IngressAddress(svc), svc.Spec.Ports[0].Port)
	return "service web has " + u.demoURL, nil
}

// waitForFirstAnswer waits until the demo answers through its balancer. The timeline has
// the first answer ever.
func (u *upRun) waitForFirstAnswer(ctx context.Context, _ func(string)) (string, error) {
	if u.demoIdle != "" {
		return u.demoIdle, nil
	}
	var body string
	err := u.poll(ctx, u.demoURL+" to answer", func(ctx context.Context) error {
		var err error
		body, err = fetchPage(ctx, u.demoURL)
		return err
	})
	if err != nil {
		return "", err
	}
	const first = "first-answer"
	entries, err := u.Timeline().Read()
	if err != nil || slices.ContainsFunc(entries, func(e timeline.Entry) bool { return e.What == first }) {
		return body, err
	}
	return body, u.Timeline().Add(timeline.Change{
		Source: timeline.SourceCluster, Subject: "service/" + manifests.DemoName, What: first, Detail: body,
	})
}

// fetchPage fetches a page once, over a connection of its own, as curl would.
func fetchPage(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return strings.TrimSpace(string(body)), err
}
