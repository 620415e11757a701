"""The registry of handlers and the router that reads output types."""

import pytest
import torch

from omniwire import contracts as c
from omniwire.runtime import (
    AudioHandler,
    ImageHandler,
    LatentHandler,
    ModalityRegistry,
    OutputRouter,
    TextHandler,
    default_registry,
)

BUILT_IN = ["audio", "image", "latent", "text", "token_ids", "video"]


class Depth:
    """A handler of its own, not derived from a built-in one."""

    modality = "depth"

    def extract(self, output):
        return output.multimodal_outputs.get("depth")

    def accumulate(self, existing, incoming):
        return [*(existing or []), incoming]

    def consolidate(self, accumulated):
        return torch.cat(accumulated)

    def validate(self, value):
        return True


@pytest.fixture
def registry():
    return default_registry()


def routed(registry, output_type):
    return [name for name, _ in OutputRouter(registry).route(c.OmniOutput(), output_type)]


class TestModalityRegistry:
    def test_the_default_registry_is_a_fresh_one_with_the_built_in_handlers(self, registry):
        assert registry.list_modalities() == BUILT_IN
        registry.register(Depth())
        assert registry.list_modalities() == sorted([*BUILT_IN, "depth"])
        assert default_registry().list_modalities() == BUILT_IN

    def test_get_finds_by_modality_and_alias_and_gives_none_for_the_rest(self):
        registry, handler = ModalityRegistry(), AudioHandler()
        registry.register(handler, aliases=("speech", "voice"))
        assert registry.get("audio") is handler
        assert registry.get("speech") is registry.get("voice") is handler
        assert registry.get("video") is None
        assert registry.get("Audio") is None
        assert registry.list_modalities() == ["audio"]

    def test_get_takes_a_string_only(self, registry, refusal):
        assert refusal(registry.get, 3) == (c.ContractTypeError, [(("name",), "type")])

    @pytest.mark.parametrize("aliases", [("speech",), ["speech"]])
    def test_a_taken_modality_or_alias_is_refused(self, refusal, aliases):
        registry, first = ModalityRegistry(), AudioHandler()
        registry.register(first, aliases=aliases)
        found = refusal(registry.register, AudioHandler())
        assert found == (c.ContractValueError, [(("handler", "modality"), "duplicate")])
        found = refusal(registry.register, ImageHandler(), aliases=("picture", "speech"))
        assert found == (c.ContractValueError, [(("aliases", 1), "duplicate")])
        found = refusal(registry.register, ImageHandler(), aliases=("audio",))
        assert found == (c.ContractValueError, [(("aliases", 0), "duplicate")])
        assert registry.get("speech") is registry.get("audio") is first
        assert registry.list_modalities() == ["audio"]

    def test_a_modality_named_like_an_alias_is_refused(self, refusal):
        registry, depth = ModalityRegistry(), Depth()
        registry.register(AudioHandler(), aliases=("depth",))
        found = refusal(registry.register, depth)
        assert found == (c.ContractValueError, [(("handler", "modality"), "duplicate")])

    def test_replace_takes_a_modality_over_and_its_aliases_with_it(self):
        registry, second = ModalityRegistry(), AudioHandler()
        registry.register(AudioHandler(), aliases=("speech",))
        registry.register(second, replace=True)
        assert registry.get("audio") is registry.get("speech") is second

    def test_replace_turns_an_alias_into_a_modality(self):
        registry, audio, depth = ModalityRegistry(), AudioHandler(), Depth()
        registry.register(audio, aliases=("depth", "speech"))
        registry.register(depth, replace=True)
        assert registry.get("depth") is depth
        assert registry.get("speech") is audio
        assert registry.list_modalities() == ["audio", "depth"]

    def test_replace_turns_a_modality_into_an_alias_and_drops_what_pointed_at_it(self):
        registry, image = ModalityRegistry(), ImageHandler()
        registry.register(AudioHandler(), aliases=("speech",))
        registry.register(image, aliases=("audio",), replace=True)
        assert registry.get("audio") is image
        assert registry.get("speech") is None
        assert registry.list_modalities() == ["image"]
        registry.register(LatentHandler(), aliases=("speech",))

    @pytest.mark.parametrize(
        ("aliases", "code"),
        [(("Speech",), "format"), (("",), "format"), (("a b",), "format"), ((3,), "type")],
    )
    def test_a_malformed_alias_is_refused(self, refusal, aliases, code):
        registry = ModalityRegistry()
        kind, problems = refusal(registry.register, AudioHandler(), aliases=aliases)
        assert problems == [(("aliases", 0), code)]
        assert kind is (c.ContractTypeError if code == "type" else c.ContractValueError)
        assert registry.list_modalities() == []

    def test_a_string_is_no_sequence_of_aliases(self, refusal):
        found = refusal(ModalityRegistry().register, AudioHandler(), aliases="speech")
        assert found == (c.ContractTypeError, [(("aliases",), "type")])

    def test_a_name_given_twice_is_refused(self, refusal):
        found = refusal(ModalityRegistry().register, AudioHandler(), aliases=("audio", "a", "a"))
        assert found[1] == [(("aliases", 0), "duplicate"), (("aliases", 2), "duplicate")]

    def test_every_problem_of_a_handler_is_reported(self, refusal):
        class Half:
            modality = "Half Done"
            accumulate = None

            def extract(self, output):
                return None

            def validate(self, value):
                return True

        found = refusal(ModalityRegistry().register, Half(), aliases=("9",))
        assert found == (
            c.ContractTypeError,
            [
                (("handler", "accumulate"), "type"),
                (("handler", "consolidate"), "type"),
                (("handler", "modality"), "format"),
                (("aliases", 0), "format"),
            ],
        )

    def test_a_handler_without_a_name_is_refused(self, refusal):
        found = refusal(ModalityRegistry().register, object())
        assert (("handler", "modality"), "type") in found[1]


class TestOutputRouter:
    @pytest.mark.parametrize(
        ("output_type", "modalities"),
        [
            ("image", ["image"]),
            ("text+audio", ["text", "audio"]),
            ("text+video+image", ["text", "video", "image"]),
            ("text, audio", ["text", "audio"]),
            (" Audio ,TEXT+ image", ["audio", "text", "image"]),
            ("latent+token_ids,text", ["latent", "token_ids", "text"]),
        ],
    )
    def test_any_number_and_order_with_case_and_blanks_ignored(
        self, registry, output_type, modalities
    ):
        assert routed(registry, output_type) == modalities

    def test_the_handlers_are_those_of_the_registry(self, registry):
        pairs = OutputRouter(registry).route(c.OmniOutput(), "audio+text")
        assert [handler for _, handler in pairs] == [registry.get("audio"), registry.get("text")]

    def test_an_alias_is_routed_under_its_modality(self):
        registry = ModalityRegistry()
        registry.register(TextHandler())
        registry.register(AudioHandler(), aliases=("speech",))
        assert routed(registry, "text+Speech") == ["text", "audio"]

    @pytest.mark.parametrize("output_type", ["", " ", "+", "audio+", ",audio", "text++audio"])
    def test_an_empty_part_is_refused_and_what_is_registered_is_listed(self, registry, output_type):
        with pytest.raises(c.ContractValueError) as caught:
            routed(registry, output_type)
        assert {(p.path, p.code) for p in caught.value.problems} == {(("output_type",), "format")}
        assert all(name in str(caught.value) for name in BUILT_IN)

    @pytest.mark.parametrize("output_type", ["audio+audio", "audio,text+Audio", "audio+speech"])
    def test_a_repeated_part_is_refused_also_through_an_alias(self, output_type):
        registry = ModalityRegistry()
        registry.register(TextHandler())
        registry.register(AudioHandler(), aliases=("speech",))
        with pytest.raises(c.ContractValueError) as caught:
            routed(registry, output_type)
        assert [p.code for p in caught.value.problems] == ["duplicate"]
        assert "audio, text" in str(caught.value)

    def test_an_unknown_part_raises_with_what_is_registered(self, registry):
        with pytest.raises(c.HandlerNotFoundError) as caught:
            routed(registry, "text+smell")
        assert caught.value.modality == "smell"
        assert caught.value.registered == tuple(BUILT_IN)

    def test_a_later_registration_counts(self, registry):
        router = OutputRouter(registry)
        registry.register(Depth())
        assert [name for name, _ in router.route(c.OmniOutput(), "depth")] == ["depth"]

    def test_the_output_type_is_a_string(self, registry, refusal):
        found = refusal(OutputRouter(registry).route, c.OmniOutput(), 3)
        assert found == (c.ContractTypeError, [(("output_type",), "type")])
