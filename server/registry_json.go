package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// registryJSON is how RegistryService reads and writes JSON behind the gateway: the proto's field names, roles and states
// as the lower-case words that the snapshot uses ("plain", "prefill", "decode"; "leased", "not_needed", …), zeros and
// empty lists present, so that a spec that was read can be sent back. Requests are read strictly: an unknown or repeated
// field, a null, or anything behind the object is refused rather than read as nothing.
type registryJSON struct{}

type workerSpecJSON struct {
	ID            string   `json:"id"`
	URL           string   `json:"url"`
	Role          string   `json:"role"`
	Models        []string `json:"models"`
	Zone          string   `json:"zone"`
	ExpectedRanks uint32   `json:"expected_ranks"`
}

type registeredWorkerJSON struct {
	Spec            workerSpecJSON `json:"spec"`
	Source          string         `json:"source"`
	State           string         `json:"state"`
	Reason          string         `json:"reason"`
	LastHTTPStatus  uint32         `json:"last_http_status"`
	Transport       *string        `json:"transport"` // null: not chosen yet
	TransportReason string         `json:"transport_reason"`
	ProbeError      string         `json:"probe_error"`
}

func (registryJSON) ContentType(any) string { return jsonType }

func (registryJSON) Marshal(v any) ([]byte, error) {
	switch m := v.(type) {
	case *loadmonitorpb.ListWorkersResponse:
		list := struct {
			Workers       []registeredWorkerJSON `json:"workers"`
			NextPageToken string                 `json:"next_page_token"`
		}{make([]registeredWorkerJSON, len(m.GetWorkers())), m.GetNextPageToken()}
		for i, w := range m.GetWorkers() {
			list.Workers[i] = registeredWorkerJSON{
				Spec:            specToJSON(w.GetSpec()),
				Source:          w.GetSource(),
				State:           strings.ToLower(strings.TrimPrefix(w.GetState().String(), "REGISTRATION_STATE_")),
				Reason:          w.GetReason(),
				LastHTTPStatus:  w.GetLastHttpStatus(),
				Transport:       transportWord(w.GetTransport()),
				TransportReason: w.GetTransportReason(),
				ProbeError:      w.GetProbeError(),
			}
		}
		return json.Marshal(list)
	case *loadmonitorpb.RegisterWorkerResponse:
		return json.Marshal(struct {
			Worker workerSpecJSON `json:"worker"`
		}{specToJSON(m.GetWorker())})
	case *loadmonitorpb.DeregisterWorkerResponse:
		return []byte("{}"), nil
	}
	return nil, fmt.Errorf("no JSON form of %T", v)
}

func specToJSON(s *loadmonitorpb.WorkerSpec) workerSpecJSON {
	return workerSpecJSON{
		ID:            s.GetId(),
		URL:           s.GetUrl(),
		Role:          roleWord(s.GetRole()),
		Models:        append([]string{}, s.GetModels()...),
		Zone:          s.GetZone(),
		ExpectedRanks: s.GetExpectedRanks(),
	}
}

func roleWord(r loadmonitorpb.Role) string {
	switch r {
	case loadmonitorpb.Role_ROLE_PREFILL:
		return load.RolePrefill.String()
	case loadmonitorpb.Role_ROLE_DECODE:
		return load.RoleDecode.String()
	}
	return load.RoleRegular.String()
}

// transportWord returns the word of the snapshot; nil: not chosen yet.
func transportWord(t loadmonitorpb.Transport) *string {
	if t == loadmonitorpb.Transport_TRANSPORT_UNSPECIFIED {
		return nil
	}
	word := load.Transport(t).String()
	return &word
}

func (registryJSON) Unmarshal(data []byte, v any) error {
	spec, ok := v.(*loadmonitorpb.WorkerSpec)
	if !ok {
		return fmt.Errorf("no JSON form of %T", v)
	}
	if err := strictObject(data); err != nil {
		return err
	}
	var in workerSpecJSON
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return fmt.Errorf("worker: %v", err)
	}
	role, ok := load.ParseRole(in.Role)
	if !ok {
		return fmt.Errorf("role %q: want plain, prefill or decode", bounded(in.Role, 64))
	}
	if in.Role == "" { // the engine says it
		role = load.RoleUnspecified
	}
	spec.SetId(in.ID)
	spec.SetUrl(in.URL)
	spec.SetRole(roleToProto(role))
	spec.SetModels(in.Models)
	spec.SetZone(in.Zone)
	spec.SetExpectedRanks(in.ExpectedRanks)
	return nil
}

func (j registryJSON) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		data, err := io.ReadAll(r) // bounded before the gateway sees it
		if err != nil {
			return err
		}
		return j.Unmarshal(data, v)
	})
}

func (j registryJSON) NewEncoder(w io.Writer) runtime.Encoder {
	return runtime.EncoderFunc(func(v any) error {
		b, err := j.Marshal(v)
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	})
}

// strictObject refuses what encoding/json would let pass: null for a value, a field that comes twice or is spelled with
// other letter case, text behind the object. Its errors wrap none, because the gateway takes io.EOF for "no body".
func strictObject(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return errors.New("body is not a JSON object")
	}
	seen := make(map[string]bool)
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return fmt.Errorf("body is not valid JSON: %v", err)
		}
		name := t.(string) // inside an object, before a value
		if name != strings.ToLower(name) || seen[name] {
			return fmt.Errorf("field %q is unknown or comes twice", bounded(name, 64))
		}
		seen[name] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return fmt.Errorf("body is not valid JSON: %v", err)
		}
		if string(value) == "null" {
			return fmt.Errorf("%s is null: leave the field out", bounded(name, 64))
		}
	}
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("body is not valid JSON: %v", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("body continues behind the JSON object")
	}
	return nil
}
