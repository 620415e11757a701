"""`assert_processor_conforms`: passes what is right, and finds each kind of fault."""

import pytest
import torch

from omniwire.contracts import MultimodalInput, MultimodalItemMetadata, MultimodalItemPartition
from omniwire.testing import assert_processor_conforms

PROMPT = [1, 9, 9, 9, 8, 8, 2]
ORDER = [("audio", 0), ("image", 1), ("image", 0)]


def payload(num_patches=5):
    return {
        "image": {
            "pixel_values": torch.arange(float(num_patches * 4)).view(num_patches, 4),
            "image_grid_thw": torch.tensor([[1, 1, 2], [1, 1, 3]]),
        },
        "audio": {"features": torch.ones(1, 6)},
    }


class Processor:
    """A correct processor of images and audio."""

    def get_mm_item_metadata(self, prompt_token_ids, multimodal_data, mm_item_order=None):
        patches = [int(grid.prod()) for grid in multimodal_data["image"]["image_grid_thw"]]
        return MultimodalItemMetadata(
            mm_item_order,
            [4 if modality == "audio" else patches[index] for modality, index in mm_item_order],
            self.rows(mm_item_order, patches),
            {
                "image": {
                    "pixel_values": MultimodalItemPartition(patches),
                    "image_grid_thw": MultimodalItemPartition(),
                },
                "audio": {"features": MultimodalItemPartition()},
            },
        )

    def rows(self, order, patches):
        return [1 if modality == "audio" else patches[index] for modality, index in order]

    def get_dummy_mm_data(self, max_items):
        order = [(modality, index) for modality, n in max_items.items() for index in range(n)]
        data = {
            "image": {
                "pixel_values": torch.zeros(8 * max_items["image"], 4),
                "image_grid_thw": torch.tensor([[1, 2, 4]] * max_items["image"]),
            },
            "audio": {"features": torch.zeros(max_items["audio"], 6)},
        }
        record = Processor.get_mm_item_metadata(self, [], data, order)
        return {**data, "item_metadata": record}


EXAMPLE = (PROMPT, payload(), ORDER)


def fault(processor, example=EXAMPLE):
    with pytest.raises(AssertionError) as caught:
        assert_processor_conforms(processor, [example])
    message = str(caught.value)
    assert message.startswith("example 0: ")
    return message


def test_a_correct_processor_conforms():
    inputs = MultimodalInput([[0] * 8] * 3, [1, 3, 4], [2, 1, 2])
    by_name = {
        "prompt_token_ids": PROMPT,
        "multimodal_data": payload(),
        "mm_item_order": ORDER,
        "output_embedding_lengths": [1, 3, 2],
        "multimodal_input": inputs,
    }
    assert_processor_conforms(Processor(), [EXAMPLE, by_name])


def test_dummy_data_are_not_asked_of_a_processor_without_them():
    class WithoutDummies:
        get_mm_item_metadata = Processor.get_mm_item_metadata
        rows = Processor.rows

    assert_processor_conforms(WithoutDummies(), [EXAMPLE])


def test_a_processor_may_know_nothing():
    class Silent:
        def get_mm_item_metadata(self, prompt_token_ids, multimodal_data, mm_item_order=None):
            return None

    images = {"image": {"pixel_values": torch.zeros(2, 4)}}
    text_only = ([1, 2], {})
    assert_processor_conforms(Silent(), [(PROMPT, images, [("image", 0)]), text_only])


def test_the_faulty_example_is_named():
    with pytest.raises(AssertionError, match=r"\Aexample 1: "):
        assert_processor_conforms(Processor(), [EXAMPLE, (PROMPT, payload(num_patches=6), ORDER)])


def test_no_example_is_no_proof():
    with pytest.raises(AssertionError):
        assert_processor_conforms(Processor(), [])


def test_a_record_of_another_type():
    class Other(Processor):
        def get_mm_item_metadata(self, prompt_token_ids, multimodal_data, mm_item_order=None):
            return {"item_refs": mm_item_order}

    assert "$.get_mm_item_metadata" in fault(Other())


def test_an_order_of_its_own():
    class Sorting(Processor):
        def get_mm_item_metadata(self, prompt_token_ids, multimodal_data, mm_item_order=None):
            order = sorted(mm_item_order)
            return super().get_mm_item_metadata(prompt_token_ids, multimodal_data, order)

    assert "$.item_refs[1]" in fault(Sorting())


def test_rows_that_preparation_knows_better():
    example = {
        "prompt_token_ids": PROMPT,
        "multimodal_data": payload(),
        "mm_item_order": ORDER,
        "output_embedding_lengths": [1, 3, 7],
    }
    assert "$.output_embedding_lengths[2]" in fault(Processor(), example)


def test_packed_lengths_that_do_not_add_up():
    assert "image.pixel_values" in fault(Processor(), (PROMPT, payload(num_patches=6), ORDER))


def test_a_payload_that_the_hook_changes():
    class Scaling(Processor):
        def get_mm_item_metadata(self, prompt_token_ids, multimodal_data, mm_item_order=None):
            multimodal_data["image"]["pixel_values"].mul_(2).add_(1)
            return super().get_mm_item_metadata(prompt_token_ids, multimodal_data, mm_item_order)

    assert "the payload unchanged" in fault(Scaling(), (PROMPT, payload(), ORDER))


def test_a_record_that_depends_on_earlier_calls():
    class Counting(Processor):
        calls = 0

        def rows(self, order, patches):
            self.calls += 1
            return [self.calls] * len(order)

    assert "$.output_embedding_lengths[0]: expected 1, got 2" in fault(Counting())


def test_dummy_data_without_a_record():
    class Bare(Processor):
        def get_dummy_mm_data(self, max_items):
            data = super().get_dummy_mm_data(max_items)
            del data["item_metadata"]
            return data

    assert "get_dummy_mm_data: expected an item metadata record" in fault(Bare())


def test_dummy_data_without_exact_rows():
    class Vague(Processor):
        def get_dummy_mm_data(self, max_items):
            data = super().get_dummy_mm_data(max_items)
            record = data["item_metadata"]
            data["item_metadata"] = MultimodalItemMetadata(record.item_refs)
            return data

    assert "output_embedding_lengths" in fault(Vague())


@pytest.mark.parametrize(("images", "audios"), [(3, 1), (2, 2)])
def test_dummy_data_of_other_items_than_wanted(images, audios):
    class Generous(Processor):
        def get_dummy_mm_data(self, max_items):
            return super().get_dummy_mm_data({"image": images, "audio": audios})

    assert "get_dummy_mm_data: expected 1 to" in fault(Generous())


def test_inconsistent_dummy_data():
    class Short(Processor):
        def get_dummy_mm_data(self, max_items):
            data = super().get_dummy_mm_data(max_items)
            data["image"]["pixel_values"] = torch.zeros(3, 4)
            return data

    assert "image.pixel_values" in fault(Short())
