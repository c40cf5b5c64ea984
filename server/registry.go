package server

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// Registry says who exists and changes it. Its methods are safe to call from any goroutine and do not wait for engines.
type Registry interface {
	// Registrations returns every registered worker, sorted by id.
	Registrations() []load.Registration
	// Register adds a worker or replaces one that was added in this way, and returns it normalised. Errors wrap
	// load.ErrWorkerSpec, load.ErrConfigured or load.ErrTooManyWorkers.
	Register(load.Worker) (load.Worker, error)
	// Deregister removes a worker that Register added. Errors wrap load.ErrUnknownWorker or load.ErrConfigured.
	Deregister(id string) error
}

// registry is RegistryService, over gRPC and behind the gateway.
type registry struct {
	loadmonitorpb.UnimplementedRegistryServiceServer
	r Registry
}

// Bounds of what a request may name, bytes and entries (rule LIFE2).
const (
	maxWorkerID = 256
	maxURL      = 2048
	maxModels   = 64
	maxZone     = 256
)

// maxPageBytes bounds a page of the list of workers, safely below the 4 MiB that stock gRPC clients accept.
const maxPageBytes = 3 << 20

// maxTokenField is the most that the token of a page takes with its tag: the id in base64, and the format.
const maxTokenField = 3 + (maxWorkerID+1+2)/3*4

// ListWorkers returns the page that begins behind the worker that the token names, whether or not that one is still there.
func (s *registry) ListWorkers(_ context.Context, req *loadmonitorpb.ListWorkersRequest) (*loadmonitorpb.ListWorkersResponse, error) {
	regs := s.r.Registrations()
	if token := req.GetPageToken(); token != "" {
		last, err := parsePageToken(token)
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		i, found := slices.BinarySearchFunc(regs, last, func(r load.Registration, id string) int { return strings.Compare(r.Worker.ID, id) })
		if found {
			i++
		}
		regs = regs[i:]
	}
	resp := &loadmonitorpb.ListWorkersResponse{}
	var workers []*loadmonitorpb.RegisteredWorker
	size := 0
	for i := range regs {
		w := registrationToProto(&regs[i])
		size += 1 + protowire.SizeBytes(proto.Size(w))
		// A page has one worker at least, however large it is: otherwise there would be no way past it.
		if size+maxTokenField > maxPageBytes && i > 0 {
			resp.SetNextPageToken(pageToken(regs[i-1].Worker.ID))
			break
		}
		workers = append(workers, w)
	}
	resp.SetWorkers(workers)
	return resp, nil
}

// pageTokenFormat begins a token, so that another format can be told apart.
const pageTokenFormat = "\x01"

// pageToken returns the token of the page behind a worker. Clients see it as an opaque string.
func pageToken(last string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(pageTokenFormat + last))
}

func parsePageToken(token string) (last string, err error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	last, ok := strings.CutPrefix(string(b), pageTokenFormat)
	if err != nil || !ok {
		return "", errors.New("page_token is not one of this monitor: take it from next_page_token as it is")
	}
	return last, nil
}

func (s *registry) RegisterWorker(_ context.Context, req *loadmonitorpb.RegisterWorkerRequest) (*loadmonitorpb.RegisterWorkerResponse, error) {
	w, err := specFromProto(req.GetWorker())
	if err == nil {
		w, err = s.r.Register(w)
	}
	if err != nil {
		return nil, registryStatus(err)
	}
	return loadmonitorpb.RegisterWorkerResponse_builder{Worker: specToProto(&w)}.Build(), nil
}

func (s *registry) DeregisterWorker(_ context.Context, req *loadmonitorpb.DeregisterWorkerRequest) (*loadmonitorpb.DeregisterWorkerResponse, error) {
	id := req.GetId()
	if id == "" || len(id) > maxWorkerID {
		return nil, registryStatus(fmt.Errorf("%w: id has %d bytes, want 1 to %d", load.ErrWorkerSpec, len(id), maxWorkerID))
	}
	if err := s.r.Deregister(id); err != nil {
		return nil, registryStatus(err)
	}
	return &loadmonitorpb.DeregisterWorkerResponse{}, nil
}

// specFromProto checks what only the wire can get wrong. Whether the URL is one is the registry's business.
func specFromProto(p *loadmonitorpb.WorkerSpec) (load.Worker, error) {
	wrong := func(field, format string, args ...any) error {
		return fmt.Errorf("%w: %s: %s", load.ErrWorkerSpec, field, fmt.Sprintf(format, args...))
	}
	w := load.Worker{ID: p.GetId(), URL: p.GetUrl(), Models: p.GetModels(), Zone: p.GetZone()}
	for _, f := range []struct {
		name  string
		value string
		limit int
	}{{"id", w.ID, maxWorkerID}, {"url", w.URL, maxURL}, {"zone", w.Zone, maxZone}} {
		if len(f.value) > f.limit {
			return w, wrong(f.name, "%d bytes, at most %d", len(f.value), f.limit)
		}
	}
	if len(w.Models) > maxModels {
		return w, wrong("models", "%d entries, at most %d", len(w.Models), maxModels)
	}
	for _, m := range w.Models {
		if m == "" || len(m) > maxModel {
			return w, wrong("models", "a name has %d bytes, want 1 to %d", len(m), maxModel)
		}
	}
	switch p.GetRole() {
	case loadmonitorpb.Role_ROLE_UNSPECIFIED: // the engine says it
	case loadmonitorpb.Role_ROLE_REGULAR:
		w.Role = load.RoleRegular
	case loadmonitorpb.Role_ROLE_PREFILL:
		w.Role = load.RolePrefill
	case loadmonitorpb.Role_ROLE_DECODE:
		w.Role = load.RoleDecode
	default:
		return w, wrong("role", "%d is unknown", p.GetRole())
	}
	if p.GetExpectedRanks() > math.MaxInt32 {
		return w, wrong("expected_ranks", "%d, at most %d", p.GetExpectedRanks(), math.MaxInt32)
	}
	w.ExpectedRanks = int(p.GetExpectedRanks())
	return w, nil
}

func specToProto(w *load.Worker) *loadmonitorpb.WorkerSpec {
	return loadmonitorpb.WorkerSpec_builder{
		Id:            w.ID,
		Url:           w.URL,
		Role:          roleToProto(w.Role),
		Models:        w.Models,
		Zone:          w.Zone,
		ExpectedRanks: uint32(w.ExpectedRanks),
	}.Build()
}

func roleToProto(r load.Role) loadmonitorpb.Role {
	switch r {
	case load.RoleRegular:
		return loadmonitorpb.Role_ROLE_REGULAR
	case load.RolePrefill:
		return loadmonitorpb.Role_ROLE_PREFILL
	case load.RoleDecode:
		return loadmonitorpb.Role_ROLE_DECODE
	}
	return loadmonitorpb.Role_ROLE_UNSPECIFIED
}

func registrationToProto(r *load.Registration) *loadmonitorpb.RegisteredWorker {
	return loadmonitorpb.RegisteredWorker_builder{
		Spec:            specToProto(&r.Worker),
		Source:          r.Source,
		State:           registrationStateToProto(r.State),
		Reason:          r.Reason,
		LastHttpStatus:  uint32(r.LastHTTPStatus),
		Transport:       loadmonitorpb.Transport(r.Worker.Transport),
		TransportReason: r.Worker.TransportReason,
		ProbeError:      r.ProbeError,
	}.Build()
}

func registrationStateToProto(s load.RegistrationState) loadmonitorpb.RegistrationState {
	switch s {
	case load.RegistrationPending:
		return loadmonitorpb.RegistrationState_REGISTRATION_STATE_PENDING
	case load.RegistrationLeased:
		return loadmonitorpb.RegistrationState_REGISTRATION_STATE_LEASED
	case load.RegistrationRetrying:
		return loadmonitorpb.RegistrationState_REGISTRATION_STATE_RETRYING
	case load.RegistrationRefused:
		return loadmonitorpb.RegistrationState_REGISTRATION_STATE_REFUSED
	case load.RegistrationConflict:
		return loadmonitorpb.RegistrationState_REGISTRATION_STATE_CONFLICT
	case load.RegistrationNotNeeded:
		return loadmonitorpb.RegistrationState_REGISTRATION_STATE_NOT_NEEDED
	}
	return loadmonitorpb.RegistrationState_REGISTRATION_STATE_UNSPECIFIED
}
