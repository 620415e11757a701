"""Tests of the modality: its handler, and whole requests that use it."""

import torch
from hypothesis import settings
from hypothesis import strategies as hst
from point_cloud import PointCloudHandler

import omniwire as ow
from omniwire.testing import (
    LiveRequest,
    RequestLifecycle,
    assert_equal,
    assert_handler_conforms,
)


def payload(num_points: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Points with numbers that occur nowhere else for this seed."""
    numbers = torch.arange(num_points * 3).view(num_points, 3) + 100 * seed
    return {"xyz": numbers.float(), "rgb": (numbers % 256).to(torch.uint8)}


def output(num_points: int, seed: int = 0) -> ow.OmniOutput:
    """A model output with some points."""
    return ow.OmniOutput(multimodal_outputs={"points": payload(num_points, seed)})


def processor() -> ow.MultimodalOutputProcessor:
    """An engine's output processor that knows point clouds beside what it knows anyway."""
    registry = ow.default_registry()
    registry.register(PointCloudHandler())
    return ow.MultimodalOutputProcessor(registry)


def test_the_handler_conforms() -> None:
    """It takes no tensors of just any shape, so it is given outputs of a request to try."""
    assert_handler_conforms(PointCloudHandler(), [output(4), output(1, 1), output(0), output(3, 2)])


def test_colors_are_numbers_from_0_to_1() -> None:
    """Positions stay as they are."""
    white = torch.full((2, 3), 255, dtype=torch.uint8)
    points = {"xyz": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), "rgb": white}
    found = PointCloudHandler().extract(ow.OmniOutput(multimodal_outputs={"points": points}))
    assert_equal(found, torch.tensor([[1.0, 2, 3, 1, 1, 1], [4, 5, 6, 1, 1, 1]]))


def test_a_cloud_with_a_point_nowhere_fails_and_text_goes_on() -> None:
    """The request ends with its tokens, and with an error of the modality."""
    engine = processor()
    engine.add_request("r1", "text+points")
    lost = {**payload(1), "xyz": torch.full((1, 3), torch.nan)}
    chunk = ow.OutputChunk(
        "r1",
        0,
        "text+points",
        [7],
        ow.OmniOutput(multimodal_outputs={"points": lost}),
        finish_reason="stop",
    )
    (last,) = engine.process_outputs([chunk])
    assert (list(last.new_token_ids), last.finish_reason) == ([7], "stop")
    assert "validate" in str(last.errors["points"])


class PointCloudLifecycle(RequestLifecycle):
    """Requests for text, images and points that stream, fail, are aborted and come back."""

    output_type = "text+image+points"

    def make_processor(self) -> ow.MultimodalOutputProcessor:
        """The processor under test."""
        return processor()

    def parts(self) -> dict[str, hst.SearchStrategy[dict[str, object]]]:
        """What a step may bring."""
        points = hst.builds(payload, hst.integers(0, 3), hst.integers(0, 9))
        return {
            "image": hst.just({"image": torch.zeros(1, 3, 2, 2)}),
            "points": hst.fixed_dictionaries({"points": points}),
        }

    def ended(self, request: LiveRequest) -> None:
        """A client has all points that were sent, in order."""
        if request.is_broken or "points" in request.spoiled:
            return
        sent = [
            torch.cat([points["xyz"], points["rgb"] / 255], dim=1)
            for chunk in request.chunks
            if chunk.output is not None
            for points in [chunk.output.multimodal_outputs.get("points")]
            if points is not None
        ]
        (last,) = request.outputs["final_only"]
        expected = {"points": torch.cat(sent)} if sent else {}
        found = {name: value for name, value in last.multimodal_outputs.items() if name == "points"}
        assert_equal(found, expected)


TestPointCloudLifecycle = PointCloudLifecycle.TestCase
TestPointCloudLifecycle.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
