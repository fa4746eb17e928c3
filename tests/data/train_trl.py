"""TRL's SFT of a tiny, untrained model on a few chats, as TRL's documentation has it. `make guides` runs it."""

import os
import sys

sys.path.append(os.environ["TRL_PACKAGES"])  # build/trl: packages that nothing else of this project needs

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

START, END = "<|im_start|>", "<|im_end|>"
letters = ["<pad>", START, END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
raw = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token=END)
tokenizer.add_special_tokens({"extra_special_tokens": [START]})
tokenizer.chat_template = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=128,
    )
)  # fmt: skip
chats = Dataset.from_list(
    [
        {"messages": [{"role": "user", "content": f"Say {i}"}, {"role": "assistant", "content": f"{i}"}]}
        for i in range(64)
    ]
)
args = SFTConfig(
    output_dir=os.environ["CLUSTERRUN_CHECKPOINT_DIR"], max_steps=4, per_device_train_batch_size=2, max_length=64,
    logging_steps=1, save_strategy="no", report_to=[], bf16=False, use_cpu=True,
)  # fmt: skip
trainer = SFTTrainer(model=model, args=args, train_dataset=chats, processing_class=tokenizer)
trainer.train()
if trainer.accelerator.is_main_process:
    print("TRL:", trainer.state.global_step, "steps on", trainer.accelerator.num_processes, "ranks")
